//! Counting (query, key) pairs: ACR, causal ACR and the analytic FLOPs ratio (AAH, section 7).

use super::{Window, WindowMap};

/// Causal (query, key) pairs of one head at `seq_len` tokens: `T (T + 1) / 2`.
pub fn causal_pairs(seq_len: usize) -> u64 {
    let t = seq_len as u64;
    t * (t + 1) / 2
}

/// Exact number of (query, key) pairs that one head evaluates with this window and these sinks.
///
/// Query `t` (from 0) sees `min(w, t + 1)` keys of its window and, of the `t + 1 - w` keys beyond it, the first
/// `sinks`.
pub fn window_pairs(window: Window, sinks: usize, seq_len: usize) -> u64 {
    let t = seq_len as u64;
    let w = window.size(seq_len) as u64;
    let inside = w * (w + 1) / 2 + (t - w) * w;
    // Queries w..T have 1, 2, … T - w keys beyond the window.
    let beyond = t - w;
    let s = sinks as u64;
    let kept = if beyond > s {
        s * (s + 1) / 2 + (beyond - s) * s
    } else {
        beyond * (beyond + 1) / 2
    };
    inside + kept
}

/// Attention coverage ratio of a set of windows: `sum min(w, T) / (n T)`. Counts positions of the windows, not mass
/// and not sinks; 1 for full attention.
pub fn acr(windows: &[Window], seq_len: usize) -> f64 {
    if windows.is_empty() || seq_len == 0 {
        return 1.0;
    }
    let kept: u64 = windows.iter().map(|w| w.size(seq_len) as u64).sum();
    kept as f64 / (windows.len() as f64 * seq_len as f64)
}

/// ACR of a whole map: the mean over layers.
pub fn map_acr(map: &WindowMap, seq_len: usize) -> f64 {
    mean((0..map.layers()).map(|layer| acr(map.layer(layer), seq_len)))
}

/// Causal ACR of a whole map: pairs inside the windows (and sinks) over all causal pairs.
pub fn map_causal_acr(map: &WindowMap, seq_len: usize) -> f64 {
    let all = causal_pairs(seq_len) as f64;
    if all == 0.0 {
        return 1.0;
    }
    mean(
        map.iter()
            .map(|(_, w)| window_pairs(w, map.sinks, seq_len) as f64 / all),
    )
}

/// Sizes that the analytic FLOPs ratio needs.
#[derive(Clone, Copy, Debug)]
pub struct FlopsShape {
    /// Tokens, T.
    pub seq_len: usize,
    /// Query heads a layer, H.
    pub n_heads: usize,
    /// Width of a head, D.
    pub head_dim: usize,
    /// Width of the residual stream, C.
    pub hidden: usize,
    /// Width of the feed-forward layer, F.
    pub ffn_hidden: usize,
}

/// Analytic FLOPs of the map over those of full attention, as the paper counts them.
///
/// Per layer: attention `4 D T sum_h min(w_h, T)` and the rest `8 T C² + 4 T C F`.
pub fn flops_ratio(map: &WindowMap, shape: FlopsShape) -> f64 {
    let t = shape.seq_len as f64;
    let d = shape.head_dim as f64;
    let (c, f) = (shape.hidden as f64, shape.ffn_hidden as f64);
    let rest = 8.0 * t * c * c + 4.0 * t * c * f;
    let full = 4.0 * d * shape.n_heads as f64 * t * t + rest;
    if full == 0.0 {
        return 1.0;
    }
    mean((0..map.layers()).map(|layer| {
        let kept: f64 = map
            .layer(layer)
            .iter()
            .map(|w| w.size(shape.seq_len) as f64)
            .sum();
        (4.0 * d * t * kept + rest) / full
    }))
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0usize);
    for value in values {
        sum += value;
        count += 1;
    }
    if count == 0 { 1.0 } else { sum / count as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_equal_a_count_by_hand() {
        for seq_len in [1usize, 2, 7, 33] {
            for sinks in [0usize, 1, 4, 40] {
                for w in [1usize, 2, 5, seq_len, seq_len + 3] {
                    let mut count = 0u64;
                    for t in 0..seq_len {
                        count += (0..=t).filter(|&j| t - j < w || j < sinks).count() as u64;
                    }
                    let window = Window::last(w).unwrap();
                    assert_eq!(
                        window_pairs(window, sinks, seq_len),
                        count,
                        "T {seq_len}, w {w}, sinks {sinks}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_full_map_has_ratio_one() {
        let map = WindowMap::full(3, 5);
        assert_eq!(map_acr(&map, 100), 1.0);
        assert_eq!(map_causal_acr(&map, 100), 1.0);
        let shape = FlopsShape {
            seq_len: 100,
            n_heads: 5,
            head_dim: 8,
            hidden: 40,
            ffn_hidden: 160,
        };
        assert_eq!(flops_ratio(&map, shape), 1.0);
        // Windows beyond the text change nothing.
        let wide = WindowMap::uniform(3, 5, Window::Last(200));
        assert_eq!(map_acr(&wide, 100), 1.0);
    }

    #[test]
    fn the_papers_flops_ratio() {
        // Section 8: full adaptive, ACR 0.2575 at T = 4096, has FLOPs ratio 0.7715.
        let shape = FlopsShape {
            seq_len: 4096,
            n_heads: 12,
            head_dim: 128,
            hidden: 1536,
            ffn_hidden: 6144,
        };
        // A map of one layer of 10,000 heads stands for the average ACR.
        let mut map = WindowMap::uniform(1, 1, Window::Last((0.2575f64 * 4096.0).round() as u32));
        map.sinks = 0;
        let shape_one = FlopsShape {
            n_heads: 1,
            head_dim: 1536,
            ..shape
        };
        assert!((flops_ratio(&map, shape_one) - 0.7715).abs() < 5e-4);
    }
}
