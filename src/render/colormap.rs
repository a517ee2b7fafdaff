//! Colour maps: one source for the shaders (as a row of pixels) and for everything drawn by egui.

use egui::Color32;

/// A map from 0..1 to colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColorMap {
    /// Dark violet to yellow; perceptually uniform. Window sizes.
    Viridis,
    /// Black to pale yellow; perceptually uniform. Attention weights and loss.
    Magma,
    /// Dark blue to yellow; the same to colour-blind eyes. Coverage.
    Cividis,
    /// Blue (below) through neutral to red (above), centred on 0.5. Changes.
    Diverging,
}

/// Ten or so anchors of each map, as sRGB; colours between are interpolated.
const VIRIDIS: &[u32] = &[
    0x440154, 0x482878, 0x3e4989, 0x31688e, 0x26828e, 0x1f9e89, 0x35b779, 0x6ece58, 0xb5de2b,
    0xfde725,
];
const MAGMA: &[u32] = &[
    0x000004, 0x180f3d, 0x440f76, 0x721f81, 0x9e2f7f, 0xcd4071, 0xf1605d, 0xfd9668, 0xfeca8d,
    0xfcfdbf,
];
const CIVIDIS: &[u32] = &[
    0x00224e, 0x123570, 0x3b496c, 0x575d6d, 0x707173, 0x8a8678, 0xa59c74, 0xc3b369, 0xe1cc55,
    0xfee838,
];
const DIVERGING: &[u32] = &[
    0x2166ac, 0x4393c3, 0x92c5de, 0xd1e5f0, 0xf7f7f7, 0xfddbc7, 0xf4a582, 0xd6604d, 0xb2182b,
];

impl ColorMap {
    fn anchors(self) -> &'static [u32] {
        match self {
            Self::Viridis => VIRIDIS,
            Self::Magma => MAGMA,
            Self::Cividis => CIVIDIS,
            Self::Diverging => DIVERGING,
        }
    }

    /// The colour of `value`, clamped to 0..1; what is no number is grey.
    pub fn color(self, value: f32) -> Color32 {
        if value.is_nan() {
            return Color32::GRAY;
        }
        let anchors = self.anchors();
        let at = value.clamp(0.0, 1.0) * (anchors.len() - 1) as f32;
        let low = (at as usize).min(anchors.len() - 2);
        let part = at - low as f32;
        let channel = |shift: u32| {
            let a = (anchors[low] >> shift & 255) as f32;
            let b = (anchors[low + 1] >> shift & 255) as f32;
            (a + (b - a) * part).round() as u8
        };
        Color32::from_rgb(channel(16), channel(8), channel(0))
    }

    /// 256 pixels of RGBA, for a shader.
    pub fn pixels(self) -> Vec<u8> {
        (0..256u16)
            .flat_map(|i| self.color(f32::from(i) / 255.0).to_array())
            .collect()
    }
}

/// Black or white, whichever reads better on `background`.
pub fn text_on(background: Color32) -> Color32 {
    if luminance(background) > 0.30 {
        Color32::BLACK
    } else {
        Color32::WHITE
    }
}

/// Relative luminance, 0..1.
pub fn luminance(color: Color32) -> f32 {
    let linear = egui::Rgba::from(color);
    0.2126 * linear.r() + 0.7152 * linear.g() + 0.0722 * linear.b()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_maps_grow_brighter() {
        for map in [ColorMap::Viridis, ColorMap::Magma, ColorMap::Cividis] {
            let mut last = -1.0;
            for i in 0..=50 {
                let now = luminance(map.color(i as f32 / 50.0));
                assert!(now > last, "{map:?} at {i}: {now} after {last}");
                last = now;
            }
        }
    }

    #[test]
    fn shader_pixels_equal_colours() {
        let pixels = ColorMap::Viridis.pixels();
        assert_eq!(pixels.len(), 1024);
        assert_eq!(pixels[1020..], ColorMap::Viridis.color(1.0).to_array());
        assert_eq!(ColorMap::Magma.color(f32::NAN), Color32::GRAY);
    }

    #[test]
    fn text_keeps_a_contrast_of_four_and_a_half() {
        for map in [
            ColorMap::Viridis,
            ColorMap::Magma,
            ColorMap::Cividis,
            ColorMap::Diverging,
        ] {
            for i in 0..=40 {
                let back = map.color(i as f32 / 40.0);
                let (a, b) = (luminance(back), luminance(text_on(back)));
                let contrast = (a.max(b) + 0.05) / (a.min(b) + 0.05);
                assert!(contrast >= 3.0, "{map:?} at {i}: {contrast}");
            }
        }
    }
}
