//! Distance profiles and the mass coverage of any window, by prefix sums (AAH, section 7).

use super::{HeadId, Window, WindowMap};

/// For every head, how much attention goes how far back: `P_h(d) = (1/T) sum_t a[t, t - d]`.
///
/// Kept as prefix sums in f64, so that the mass coverage of any window of any head is one look-up.
#[derive(Clone, Debug)]
pub struct DistanceProfile {
    heads: usize,
    seq_len: usize,
    /// `[layers, heads, T]`: mass at distances `0..=d`.
    prefix: Vec<f32>,
}

impl DistanceProfile {
    /// From profiles per layer, each `[heads, T]`.
    pub fn from_layers(profiles: &[Vec<f32>], heads: usize, seq_len: usize) -> Self {
        let mut prefix = Vec::with_capacity(profiles.len() * heads * seq_len);
        for layer in profiles {
            for profile in layer.chunks(seq_len.max(1)) {
                let mut sum = 0.0f64;
                prefix.extend(profile.iter().map(|&p| {
                    sum += f64::from(p);
                    sum as f32
                }));
            }
        }
        Self {
            heads,
            seq_len,
            prefix,
        }
    }

    /// Tokens of the run that was measured, T.
    pub fn seq_len(&self) -> usize {
        self.seq_len
    }

    /// Prefix sums of one head, `[T]`: `[w - 1]` is the mass coverage of window `w`.
    pub fn cumulative(&self, head: HeadId) -> &[f32] {
        let start = (head.layer * self.heads + head.head) * self.seq_len;
        &self.prefix[start..start + self.seq_len]
    }

    /// Share of the head's full-attention mass that falls inside `window`, without sinks, 0..1.
    pub fn coverage(&self, head: HeadId, window: Window) -> f32 {
        let cumulative = self.cumulative(head);
        match window.size(self.seq_len) {
            0 => 0.0,
            w => cumulative[w - 1].min(1.0),
        }
    }
}

/// For every head, the mass on the first `sinks` keys that lies at distance `d` or farther.
///
/// With sinks a head keeps what is in its window and, beyond it, what goes to the first keys; this is that second
/// part for every window at once.
#[derive(Clone, Debug)]
pub struct SinkProfile {
    sinks: usize,
    heads: usize,
    seq_len: usize,
    /// `[layers, heads, T]`: mass on keys `< sinks` at distance `>= d`.
    suffix: Vec<f32>,
}

impl SinkProfile {
    /// From the mass on sink keys at each distance, per layer `[heads, T]`.
    pub fn from_layers(masses: &[Vec<f32>], sinks: usize, heads: usize, seq_len: usize) -> Self {
        let mut suffix = Vec::with_capacity(masses.len() * heads * seq_len);
        for layer in masses {
            for mass in layer.chunks(seq_len.max(1)) {
                let start = suffix.len();
                suffix.resize(start + mass.len(), 0.0);
                let mut sum = 0.0f64;
                for (d, &m) in mass.iter().enumerate().rev() {
                    sum += f64::from(m);
                    suffix[start + d] = sum as f32;
                }
            }
        }
        Self {
            sinks,
            heads,
            seq_len,
            suffix,
        }
    }

    /// For how many sinks this was measured.
    pub fn sinks(&self) -> usize {
        self.sinks
    }

    /// Mass on the sink keys that `window` leaves out.
    pub fn beyond(&self, head: HeadId, window: Window) -> f32 {
        let w = window.size(self.seq_len);
        if w >= self.seq_len {
            return 0.0;
        }
        self.suffix[(head.layer * self.heads + head.head) * self.seq_len + w]
    }
}

/// Mass coverage of one head under a window: inside the window, plus what the sinks keep where they were measured.
pub fn coverage_at(
    profile: &DistanceProfile,
    sinks: Option<&SinkProfile>,
    head: HeadId,
    window: Window,
) -> f32 {
    let beyond = sinks.map_or(0.0, |s| s.beyond(head, window));
    (profile.coverage(head, window) + beyond).min(1.0)
}

/// Mean mass coverage of a whole map.
pub fn map_coverage(
    profile: &DistanceProfile,
    sinks: Option<&SinkProfile>,
    map: &WindowMap,
) -> f64 {
    let mut sum = 0.0f64;
    let mut count = 0usize;
    for (head, window) in map.iter() {
        sum += f64::from(coverage_at(profile, sinks, head, window));
        count += 1;
    }
    if count == 0 { 1.0 } else { sum / count as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: HeadId = HeadId { layer: 0, head: 0 };

    #[test]
    fn coverage_is_the_prefix_sum() {
        let profile = DistanceProfile::from_layers(&[vec![0.5, 0.25, 0.125, 0.125]], 1, 4);
        assert_eq!(profile.coverage(HEAD, Window::Last(1)), 0.5);
        assert_eq!(profile.coverage(HEAD, Window::Last(3)), 0.875);
        assert_eq!(profile.coverage(HEAD, Window::Full), 1.0);
        assert_eq!(profile.coverage(HEAD, Window::Last(99)), 1.0);
    }

    #[test]
    fn sinks_add_what_lies_beyond() {
        let profile = DistanceProfile::from_layers(&[vec![0.5, 0.25, 0.125, 0.125]], 1, 4);
        let sinks = SinkProfile::from_layers(&[vec![0.0, 0.1, 0.05, 0.125]], 2, 1, 4);
        let with = |w| coverage_at(&profile, Some(&sinks), HEAD, w);
        assert!((with(Window::Last(2)) - (0.75 + 0.175)).abs() < 1e-6);
        assert_eq!(with(Window::Full), 1.0);
    }
}
