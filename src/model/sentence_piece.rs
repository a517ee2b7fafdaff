//! [`SentencePiece`]: tokens by scores, as SentencePiece's BPE and the GGUF files of Llama 2 and Gemma have them.
//!
//! There are no merge rules: of all neighbours that would make a known piece, those join whose piece has the highest
//! score, the leftmost of equals, until none is left; characters that are in no piece become bytes.

use std::{
    collections::{BinaryHeap, HashMap},
    ops::Range,
};

/// What a piece is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceKind {
    /// Part of a text.
    Normal,
    /// Stands for what no piece covers.
    Unknown,
    /// Stands for no text, like a beginning.
    Control,
    /// A text that is never split.
    UserDefined,
    /// A place that is free.
    Unused,
    /// One byte, written `<0xE4>`.
    Byte,
}

/// What stands for a space within pieces.
const SPACE: char = '▁';

/// A vocabulary with scores.
pub(super) struct SentencePiece {
    pieces: Vec<String>,
    scores: Vec<f32>,
    ids: HashMap<String, u32>,
    /// Tokens of the 256 bytes.
    bytes: Vec<Option<u32>>,
    unknown: Option<u32>,
    /// Pieces that are found in a text as they stand, by their first character; the longest first.
    whole: HashMap<char, Vec<(String, u32)>>,
    /// Whether a text gets a space in front.
    adds_space: bool,
}

/// A token and the bytes of the text it stands for.
pub(super) type Token = (u32, Range<usize>);

/// A part of the text while it grows: a linked list, so that joining is cheap.
struct Symbol {
    /// Bytes of the text with spaces written as [`SPACE`]; empty once it has joined another.
    piece: Range<usize>,
    /// Bytes of the text itself.
    source: Range<usize>,
    previous: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours that could join. Ordered by score, then from left to right.
#[derive(PartialEq)]
struct Joint {
    score: f32,
    left: usize,
    right: usize,
    /// Bytes of both: another length tells that one of them has joined something else since.
    len: usize,
}

impl Eq for Joint {}

impl Ord for Joint {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let by_score = self.score.total_cmp(&other.score);
        by_score.then_with(|| other.left.cmp(&self.left))
    }
}

impl PartialOrd for Joint {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl SentencePiece {
    /// From pieces, scores and kinds of equal length.
    pub fn new(
        pieces: Vec<String>,
        scores: Vec<f32>,
        kinds: &[PieceKind],
        adds_space: bool,
    ) -> Self {
        let mut ids = HashMap::with_capacity(pieces.len());
        let mut bytes = vec![None; 256];
        let mut unknown = None;
        let mut whole: HashMap<char, Vec<(String, u32)>> = HashMap::new();
        for ((id, piece), kind) in (0u32..).zip(&pieces).zip(kinds) {
            match kind {
                PieceKind::Byte => {
                    let hex = piece.strip_prefix("<0x").and_then(|p| p.strip_suffix('>'));
                    if let Some(byte) = hex.and_then(|h| u8::from_str_radix(h, 16).ok()) {
                        bytes[usize::from(byte)] = Some(id);
                    }
                }
                PieceKind::Unknown => unknown = Some(id),
                PieceKind::Control | PieceKind::UserDefined => {
                    if let Some(first) = piece.chars().next() {
                        whole.entry(first).or_default().push((piece.clone(), id));
                    }
                }
                PieceKind::Normal | PieceKind::Unused => {}
            }
            ids.entry(piece.clone()).or_insert(id);
        }
        for alike in whole.values_mut() {
            alike.sort_by_key(|(piece, _)| std::cmp::Reverse(piece.len()));
        }
        Self {
            pieces,
            scores,
            ids,
            bytes,
            unknown,
            whole,
            adds_space,
        }
    }

    /// How the vocabulary writes a token.
    pub fn piece(&self, id: u32) -> Option<&str> {
        self.pieces.get(id as usize).map(String::as_str)
    }

    /// Tokens of a text.
    pub fn encode(&self, text: &str) -> Vec<Token> {
        let mut tokens = Vec::new();
        // A space goes in front of the text, and of what follows a token that stands whole.
        let mut start = 0;
        let mut at = 0;
        while let Some(first) = text[at..].chars().next() {
            let found = self.whole.get(&first).and_then(|alike| {
                alike
                    .iter()
                    .find(|(piece, _)| text[at..].starts_with(piece.as_str()))
            });
            match found {
                Some((piece, id)) => {
                    self.encode_part(text, start..at, &mut tokens);
                    let end = at + piece.len();
                    tokens.push((*id, at..end));
                    (start, at) = (end, end);
                }
                None => at += first.len_utf8(),
            }
        }
        self.encode_part(text, start..text.len(), &mut tokens);
        tokens
    }

    /// Tokens of a part of a text without tokens that stand whole.
    fn encode_part(&self, text: &str, part: Range<usize>, tokens: &mut Vec<Token>) {
        if part.is_empty() {
            return;
        }
        let mut written = String::with_capacity(part.len() + 8);
        let mut symbols: Vec<Symbol> = Vec::with_capacity(part.len());
        let mut push = |c: char, source: Range<usize>| {
            let from = written.len();
            written.push(if c == ' ' { SPACE } else { c });
            let index = symbols.len();
            if let Some(last) = symbols.last_mut() {
                last.next = Some(index);
            }
            symbols.push(Symbol {
                piece: from..written.len(),
                source,
                previous: index.checked_sub(1),
                next: None,
            });
        };
        if self.adds_space {
            push(' ', part.start..part.start);
        }
        for (offset, c) in text[part.clone()].char_indices() {
            let from = part.start + offset;
            push(c, from..from + c.len_utf8());
        }
        let mut heap = BinaryHeap::with_capacity(symbols.len());
        for left in 0..symbols.len() {
            heap.extend(self.joint(&symbols, &written, left));
        }
        while let Some(joint) = heap.pop() {
            let (left, right) = (&symbols[joint.left], &symbols[joint.right]);
            let is_stale = left.piece.is_empty()
                || right.piece.is_empty()
                || left.piece.len() + right.piece.len() != joint.len;
            if is_stale {
                continue;
            }
            let (piece_end, source_end, next) = (right.piece.end, right.source.end, right.next);
            let (left, right) = (joint.left, joint.right);
            symbols[left].piece.end = piece_end;
            symbols[left].source.end = source_end;
            symbols[left].next = next;
            symbols[right].piece = 0..0;
            if let Some(next) = next {
                symbols[next].previous = Some(left);
            }
            if let Some(previous) = symbols[left].previous {
                heap.extend(self.joint(&symbols, &written, previous));
            }
            heap.extend(self.joint(&symbols, &written, left));
        }
        for symbol in symbols.iter().filter(|s| !s.piece.is_empty()) {
            let piece = &written[symbol.piece.clone()];
            match self.ids.get(piece) {
                Some(&id) => tokens.push((id, symbol.source.clone())),
                None => {
                    for byte in piece.bytes() {
                        if let Some(id) = self.bytes[usize::from(byte)].or(self.unknown) {
                            tokens.push((id, symbol.source.clone()));
                        }
                    }
                }
            }
        }
    }

    /// What symbol `left` and the one after it would make.
    fn joint(&self, symbols: &[Symbol], written: &str, left: usize) -> Option<Joint> {
        let right = symbols[left].next?;
        let piece = symbols[left].piece.start..symbols[right].piece.end;
        let id = *self.ids.get(&written[piece.clone()])?;
        Some(Joint {
            score: *self.scores.get(id as usize)?,
            left,
            right,
            len: piece.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary(pieces: &[(&str, f32, PieceKind)]) -> SentencePiece {
        let kinds: Vec<PieceKind> = pieces.iter().map(|p| p.2).collect();
        SentencePiece::new(
            pieces.iter().map(|p| p.0.to_owned()).collect(),
            pieces.iter().map(|p| p.1).collect(),
            &kinds,
            true,
        )
    }

    #[test]
    fn the_highest_score_joins_first_and_the_leftmost_of_equals() {
        use PieceKind::{Byte, Control, Normal, Unknown};
        let model = vocabulary(&[
            ("<unk>", 0.0, Unknown),
            ("<s>", 0.0, Control),
            ("▁", -9.0, Normal),
            ("a", -9.0, Normal),
            ("b", -9.0, Normal),
            ("ab", -1.0, Normal),
            ("ba", -2.0, Normal),
            ("aa", -3.0, Normal),
            ("▁ab", -4.0, Normal),
            ("<0xC3>", 0.0, Byte),
            ("<0xA9>", 0.0, Byte),
        ]);
        let ids = |text: &str| -> Vec<u32> { model.encode(text).iter().map(|t| t.0).collect() };
        assert_eq!(ids("ab"), [8]);
        // "ab" comes before "ba", and what is left stays alone.
        assert_eq!(ids("bab"), [2, 4, 5]);
        assert_eq!(ids("aaa"), [2, 7, 3]);
        // A character that no piece has becomes bytes, both standing for the whole of it.
        assert_eq!(model.encode("é"), [(2, 0..0), (9, 0..2), (10, 0..2)]);
        // A token that stands whole, with a space after it again.
        assert_eq!(ids("<s>ab"), [1, 8]);
        assert!(ids("").is_empty());
    }
}
