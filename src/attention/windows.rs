//! [`Window`] and [`WindowMap`]: how far back each head may look.

use serde::{Deserialize, Serialize};

/// How far back one head looks, counted in keys *including the query's own*.
///
/// With window `w`, query `t` sees the keys `j` with `t - w < j <= t` (AAH, section 1). `Full` is the
/// whole causal past: a value of its own, so that a map stays full when the text grows.
///
/// In JSON a window is a positive integer, and `Full` is `null`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Window {
    /// The query's own key and the `n - 1` before it. Never 0: see [`Window::last`].
    Last(u32),
    /// The whole causal past.
    #[default]
    Full,
}

impl Window {
    /// The last `n` keys; `None` for 0, since a query always sees its own key.
    pub fn last(n: usize) -> Option<Self> {
        match u32::try_from(n) {
            Ok(0) => None,
            Ok(n) => Some(Self::Last(n)),
            Err(_) => Some(Self::Full),
        }
    }

    /// A window of `size` keys in a text of `seq_len`: full where it holds all of it. A size of 0 counts as 1.
    pub fn of_size(size: usize, seq_len: usize) -> Self {
        if size >= seq_len {
            Self::Full
        } else {
            Self::last(size.max(1)).unwrap_or(Self::Full)
        }
    }

    /// The window as a number of keys at `seq_len` tokens: `min(w, seq_len)`.
    pub fn size(self, seq_len: usize) -> usize {
        match self {
            Self::Last(n) => (n as usize).min(seq_len),
            Self::Full => seq_len,
        }
    }

    /// The narrower of two windows; how a model's own window bounds the user's.
    pub fn min(self, other: Self) -> Self {
        Ord::min(self, other)
    }

    /// Whether this window hides nothing at `seq_len` tokens.
    pub fn is_full_at(self, seq_len: usize) -> bool {
        self.size(seq_len) >= seq_len
    }
}

impl std::fmt::Display for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Last(n) => write!(f, "{n}"),
            Self::Full => write!(f, "full"),
        }
    }
}

impl Serialize for Window {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Last(n) => serializer.serialize_u32(*n),
            Self::Full => serializer.serialize_none(),
        }
    }
}

impl<'de> Deserialize<'de> for Window {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Option::<u64>::deserialize(deserializer)? {
            None => Ok(Self::Full),
            Some(0) => Err(serde::de::Error::custom(
                "a window of 0 keys is not possible: the query's own key counts, so the least is 1",
            )),
            Some(n) => Ok(u32::try_from(n).map_or(Self::Full, Self::Last)),
        }
    }
}

/// One head of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HeadId {
    /// Layer, from 0.
    pub layer: usize,
    /// Query head within the layer, from 0.
    pub head: usize,
}

impl std::fmt::Display for HeadId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "L{} H{}", self.layer, self.head)
    }
}

/// The windows of all heads of a model, and how many first keys (attention sinks) every head keeps.
///
/// ```
/// use headscope::attention::{HeadId, Window, WindowMap};
/// let mut map = WindowMap::full(2, 4);
/// map.set(HeadId { layer: 1, head: 2 }, Window::Last(64));
/// assert_eq!(map.first_difference(&WindowMap::full(2, 4)), Some(1));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowMap {
    layers: usize,
    heads: usize,
    /// `[layers * heads]`, row-major.
    windows: Vec<Window>,
    /// Keys `0..sinks` stay visible to every head, beside its window.
    pub sinks: usize,
}

impl WindowMap {
    /// Every head full, no sinks.
    pub fn full(layers: usize, heads: usize) -> Self {
        Self::uniform(layers, heads, Window::Full)
    }

    /// Every head the same window, no sinks.
    pub fn uniform(layers: usize, heads: usize, window: Window) -> Self {
        Self {
            layers,
            heads,
            windows: vec![window; layers * heads],
            sinks: 0,
        }
    }

    /// The same windows with `sinks` first keys kept visible.
    pub fn with_sinks(mut self, sinks: usize) -> Self {
        self.sinks = sinks;
        self
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// Number of query heads a layer.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// The window of `head`. Heads outside the map are full.
    pub fn get(&self, head: HeadId) -> Window {
        self.index(head)
            .map_or(Window::Full, |index| self.windows[index])
    }

    /// Sets one window; a head outside the map is ignored.
    pub fn set(&mut self, head: HeadId, window: Window) {
        if let Some(index) = self.index(head) {
            self.windows[index] = window;
        }
    }

    /// The windows of one layer, `[heads]`.
    pub fn layer(&self, layer: usize) -> &[Window] {
        &self.windows[layer * self.heads..(layer + 1) * self.heads]
    }

    /// All heads in layer order, with their windows.
    pub fn iter(&self) -> impl Iterator<Item = (HeadId, Window)> + '_ {
        self.windows.iter().enumerate().map(|(index, &window)| {
            (
                HeadId {
                    layer: index / self.heads,
                    head: index % self.heads,
                },
                window,
            )
        })
    }

    /// Whether no head hides anything at `seq_len` tokens.
    pub fn is_full_at(&self, seq_len: usize) -> bool {
        self.windows.iter().all(|w| w.is_full_at(seq_len))
    }

    /// The first layer in which the two maps give different results; `None` where they agree.
    ///
    /// Maps of different shapes, or with different sinks, differ from layer 0 on.
    pub fn first_difference(&self, other: &Self) -> Option<usize> {
        if self.layers != other.layers || self.heads != other.heads || self.sinks != other.sinks {
            return Some(0);
        }
        (0..self.layers).find(|&layer| self.layer(layer) != other.layer(layer))
    }

    fn index(&self, head: HeadId) -> Option<usize> {
        (head.layer < self.layers && head.head < self.heads)
            .then_some(head.layer * self.heads + head.head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_round_trip_and_zero_is_refused() {
        let windows = vec![Window::Last(1), Window::Full, Window::Last(4096)];
        let text = serde_json::to_string(&windows).unwrap();
        assert_eq!(text, "[1,null,4096]");
        assert_eq!(serde_json::from_str::<Vec<Window>>(&text).unwrap(), windows);
        let error = serde_json::from_str::<Window>("0").unwrap_err().to_string();
        assert!(error.contains("least is 1"), "{error}");
    }

    #[test]
    fn full_is_the_widest() {
        assert_eq!(Window::Full.min(Window::Last(3)), Window::Last(3));
        assert_eq!(Window::Last(5).min(Window::Last(3)), Window::Last(3));
        assert_eq!(Window::last(0), None);
        assert!(Window::Last(9).is_full_at(9));
        assert!(!Window::Last(8).is_full_at(9));
    }

    #[test]
    fn first_difference_finds_the_layer() {
        let full = WindowMap::full(4, 3);
        let mut edited = full.clone();
        assert_eq!(full.first_difference(&edited), None);
        edited.set(HeadId { layer: 2, head: 1 }, Window::Last(7));
        assert_eq!(full.first_difference(&edited), Some(2));
        assert_eq!(full.first_difference(&full.clone().with_sinks(4)), Some(0));
    }
}
