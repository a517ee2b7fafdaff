//! [`WindowScale`]: windows on a log2 scale, the same for cells, plots and colours.

use crate::attention::Window;

/// Windows of a text as levels: `0` is 1 key, one level is a doubling, and the last is full.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowScale {
    seq_len: usize,
    /// The level of the whole text: the number of powers of two below it.
    top: usize,
}

impl WindowScale {
    /// For a text of `seq_len` tokens.
    pub fn new(seq_len: usize) -> Self {
        let top = (0..).take_while(|&n| 1usize << n < seq_len).count();
        Self { seq_len, top }
    }

    /// The level that stands for full.
    pub fn top(self) -> f32 {
        self.top as f32
    }

    /// The level of a window, 0 to [`Self::top`].
    pub fn level(self, window: Window) -> f32 {
        self.level_of_size(window.size(self.seq_len))
    }

    /// The level of a number of keys.
    pub fn level_of_size(self, size: usize) -> f32 {
        let size = size.max(1);
        if size >= self.seq_len || self.top == 0 {
            return self.top as f32;
        }
        let last = self.top - 1;
        if size <= 1 << last {
            return (size as f32).log2();
        }
        // From the last power of two to the whole text.
        let from = (1usize << last) as f32;
        last as f32 + (size as f32 / from).ln() / (self.seq_len as f32 / from).ln()
    }

    /// The window at a level: any number of keys if `fine`, else a power of two or full.
    pub fn window(self, level: f32, fine: bool) -> Window {
        let level = level.clamp(0.0, self.top as f32);
        let level = if fine { level } else { level.round() };
        if level >= self.top as f32 {
            return Window::Full;
        }
        let last = (self.top - 1) as f32;
        let size = if level <= last {
            level.exp2()
        } else {
            last.exp2() * (self.seq_len as f32 / last.exp2()).powf(level - last)
        };
        let size = (size.round() as usize).clamp(1, self.seq_len);
        if size == self.seq_len {
            Window::Full
        } else {
            Window::last(size).unwrap_or(Window::Full)
        }
    }

    /// A window's place in a colour map, 0..1.
    pub fn fraction(self, window: Window) -> f32 {
        if self.top == 0 {
            1.0
        } else {
            self.level(window) / self.top as f32
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_windows_agree() {
        for seq_len in [2usize, 3, 16, 17, 917, 4096] {
            let scale = WindowScale::new(seq_len);
            for size in 1..seq_len {
                let window = Window::last(size).unwrap();
                let back = scale.window(scale.level(window), true);
                let error = back.size(seq_len).abs_diff(size);
                assert!(
                    error <= 1 + size / 1000,
                    "T {seq_len}: {size} came back as {back}"
                );
            }
            assert_eq!(scale.window(scale.top(), false), Window::Full);
            assert_eq!(scale.level(Window::Full), scale.top());
            assert_eq!(
                scale.window(-3.0, false),
                Window::last(1).unwrap().min(scale.window(0.0, false))
            );
        }
        assert_eq!(WindowScale::new(1).window(0.0, false), Window::Full);
    }

    #[test]
    fn snapping_gives_powers_of_two_and_full() {
        let scale = WindowScale::new(917);
        let all: Vec<String> = (0..=10)
            .map(|level| scale.window(level as f32 + 0.3, false).to_string())
            .collect();
        assert_eq!(
            all,
            [
                "1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "full"
            ]
        );
    }
}
