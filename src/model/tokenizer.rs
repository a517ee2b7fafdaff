//! [`Tokenizer`] and [`TokenizedText`]: from text to tokens, and back to what a person reads.

use std::{ops::Range, path::Path};

use unicode_segmentation::UnicodeSegmentation;

use super::sentence_piece::SentencePiece;
use crate::{Error, Result, contain::contained};

/// Largest `tokenizer.json` that is read; the largest real ones are about 35 MB.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Whether a text begins with the token for a beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bos {
    /// As the model's tokenizer does by itself.
    #[default]
    Auto,
    /// Always, where the model has one.
    On,
    /// Never.
    Off,
}

/// What turns text into tokens.
enum Kind {
    /// Anything that a `tokenizer.json` can say.
    Pipeline(Box<tokenizers::Tokenizer>),
    /// Pieces with scores.
    SentencePiece(SentencePiece),
    /// There is none.
    Absent,
}

/// A model's tokenizer.
pub struct Tokenizer {
    kind: Kind,
    origin: String,
    /// The token for a beginning, where it is known.
    bos: Option<u32>,
    /// Whether the tokenizer adds it by itself.
    adds_bos: bool,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tokenizer({})", self.origin)
    }
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// When the file is missing, far too large, or not a tokenizer.
    pub fn open(path: &Path) -> Result<Self> {
        let size = std::fs::metadata(path)
            .map_err(|e| Error::io("read", path, e))?
            .len();
        if size > MAX_FILE_BYTES {
            return Err(Error::Tokenizer {
                origin: path.display().to_string(),
                message: format!("is {size} bytes long, which no tokenizer is"),
            });
        }
        let bytes = std::fs::read(path).map_err(|e| Error::io("read", path, e))?;
        Self::from_bytes(&path.display().to_string(), &bytes)
    }

    /// From the bytes of a `tokenizer.json`.
    ///
    /// # Errors
    /// When they are not a tokenizer.
    pub fn from_bytes(origin: &str, bytes: &[u8]) -> Result<Self> {
        let refuse = |message: String| Error::Tokenizer {
            origin: origin.to_owned(),
            message,
        };
        let mut pipeline = contained(|| tokenizers::Tokenizer::from_bytes(bytes))
            .unwrap_or_else(|_| Err("it contradicts itself".into()))
            .map_err(|e| {
                refuse(format!(
                    "is not a tokenizer ({e}); it comes with the model as tokenizer.json"
                ))
            })?;
        // A file may ask for cutting or padding, which are for training batches.
        pipeline.with_padding(None);
        pipeline
            .with_truncation(None)
            .map_err(|e| refuse(e.to_string()))?;
        // What it puts before a text shows on any text.
        let leading = |add: bool| -> Result<Vec<u32>> {
            let encoding = contained(|| pipeline.encode("a", add))
                .unwrap_or_else(|_| Err("it contradicts itself".into()))
                .map_err(|e| refuse(format!("cannot read even a letter: {e}")))?;
            Ok(encoding.get_ids().to_vec())
        };
        let (plain, with) = (leading(false)?, leading(true)?);
        let bos = with
            .first()
            .copied()
            .filter(|first| with.len() > plain.len() && plain.first() != Some(first));
        Ok(Self::from_pipeline(origin, pipeline).with_bos(bos, bos.is_some()))
    }

    /// From a tokenizer that is ready.
    pub(super) fn from_pipeline(origin: &str, pipeline: tokenizers::Tokenizer) -> Self {
        Self::new(origin, Kind::Pipeline(Box::new(pipeline)))
    }

    /// From pieces with scores.
    pub(super) fn from_sentence_piece(origin: &str, model: SentencePiece) -> Self {
        Self::new(origin, Kind::SentencePiece(model))
    }

    /// Stands for a tokenizer that is not there; it refuses every text.
    pub(super) fn none(origin: &str) -> Self {
        Self::new(origin, Kind::Absent)
    }

    fn new(origin: &str, kind: Kind) -> Self {
        Self {
            kind,
            origin: origin.to_owned(),
            bos: None,
            adds_bos: false,
        }
    }

    /// Says what token a text begins with, and whether it does by habit.
    pub(super) fn with_bos(mut self, bos: Option<u32>, adds_bos: bool) -> Self {
        self.bos = bos;
        self.adds_bos = adds_bos && bos.is_some();
        self
    }

    /// Names the token for a beginning where the tokenizer itself does not say.
    pub(super) fn with_known_bos(mut self, bos: Option<u32>) -> Self {
        self.bos = self.bos.or(bos);
        self
    }

    /// The token for a beginning, where the model has one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token that texts, and blocks of them, begin with under this setting.
    pub fn leading(&self, bos: Bos) -> Option<u32> {
        match bos {
            Bos::Auto => self.bos.filter(|_| self.adds_bos),
            Bos::On => self.bos,
            Bos::Off => None,
        }
    }

    /// How the vocabulary writes a token.
    pub fn piece(&self, id: u32) -> String {
        match &self.kind {
            Kind::Pipeline(pipeline) => pipeline.id_to_token(id),
            Kind::SentencePiece(model) => model.piece(id).map(str::to_owned),
            Kind::Absent => None,
        }
        .unwrap_or_else(|| format!("#{id}"))
    }

    /// Tokens of `text`, with the token for a beginning where the setting asks for it. A text that begins with it
    /// already gets no second one.
    ///
    /// # Errors
    /// When the tokenizer fails, or gives a token outside a vocabulary of `vocab_size`.
    pub fn encode(&self, text: &str, vocab_size: usize, bos: Bos) -> Result<TokenizedText> {
        let refuse = |message: String| Error::Tokenizer {
            origin: self.origin.clone(),
            message,
        };
        let (mut ids, mut ranges) = (Vec::new(), Vec::new());
        match &self.kind {
            Kind::Absent => return Err(refuse("has no tokenizer.json".to_owned())),
            Kind::SentencePiece(model) => (ids, ranges) = model.encode(text).into_iter().unzip(),
            Kind::Pipeline(pipeline) => {
                let encoding = contained(|| pipeline.encode(text, false))
                    .unwrap_or_else(|_| Err("the tokenizer contradicts itself".into()))
                    .map_err(|e| refuse(format!("cannot read this text: {e}")))?;
                // Offsets come from outside code: whatever they are, they must slice the text.
                let mut at = 0;
                for (&id, &(start, end)) in encoding.get_ids().iter().zip(encoding.get_offsets()) {
                    ids.push(id);
                    let is_valid =
                        start <= end && text.is_char_boundary(start) && text.is_char_boundary(end);
                    if is_valid {
                        at = end;
                        ranges.push(start..end);
                    } else {
                        ranges.push(at..at);
                    }
                }
            }
        }
        close_gaps(&mut ranges, text.len());
        if let Some(leading) = self.leading(bos).filter(|id| ids.first() != Some(id)) {
            ids.insert(0, leading);
            ranges.insert(0, 0..0);
        }
        if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab_size) {
            return Err(refuse(format!(
                "gives token {id}, but the model knows only {vocab_size}; it belongs to another model"
            )));
        }
        let pieces = ids.iter().map(|&id| self.piece(id)).collect();
        Ok(TokenizedText::new(text.to_owned(), ids, ranges, pieces))
    }
}

/// Gives bytes that no token covers to the one before them, or at the beginning to the one after: a mark that a
/// tokenizer composed with its letter, or white space that it dropped.
fn close_gaps(ranges: &mut [Range<usize>], length: usize) {
    let mut last: Option<usize> = None;
    let mut covered = 0;
    for index in 0..ranges.len() {
        if ranges[index].is_empty() {
            continue;
        }
        if ranges[index].start > covered {
            match last {
                Some(last) => ranges[last].end = ranges[index].start,
                None => ranges[index].start = 0,
            }
        }
        covered = covered.max(ranges[index].end);
        last = Some(index);
    }
    if let Some(last) = last
        && covered < length
    {
        ranges[last].end = length;
    }
}

/// A run of tokens that a person sees as one piece: usually one token; several where they share a character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Tokens.
    pub tokens: Range<usize>,
    /// Bytes of the text; empty for a special token that stands for none.
    pub bytes: Range<usize>,
}

/// A text and its tokens.
#[derive(Clone, Debug)]
pub struct TokenizedText {
    /// The text.
    pub text: String,
    /// Token ids, `[T]`.
    pub ids: Vec<u32>,
    /// Bytes of the text that each token covers; tokens that split a character all cover the whole of it.
    pub ranges: Vec<Range<usize>>,
    /// Each token as the vocabulary writes it.
    pieces: Vec<String>,
    clusters: Vec<Cluster>,
    /// Cluster of each token.
    cluster_of: Vec<usize>,
}

impl TokenizedText {
    fn new(text: String, ids: Vec<u32>, ranges: Vec<Range<usize>>, pieces: Vec<String>) -> Self {
        let clusters = clusters(&text, &ranges);
        let mut cluster_of = vec![0; ids.len()];
        for (index, cluster) in clusters.iter().enumerate() {
            cluster_of[cluster.tokens.clone()].fill(index);
        }
        Self {
            text,
            ids,
            ranges,
            pieces,
            clusters,
            cluster_of,
        }
    }

    /// Number of tokens, T.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Only the first `count` tokens.
    pub fn truncated(&self, count: usize) -> Self {
        if count >= self.len() {
            return self.clone();
        }
        let ranges = self.ranges[..count].to_vec();
        let end = ranges.last().map_or(0, |r| r.end);
        Self::new(
            self.text[..end].to_owned(),
            self.ids[..count].to_vec(),
            ranges,
            self.pieces[..count].to_vec(),
        )
    }

    /// The tokens in blocks of at most `length`, each beginning with `leading` (id and piece) if given, as the text then
    /// does itself. A character that two blocks share stands in both.
    pub fn blocks(&self, length: usize, leading: Option<(u32, String)>) -> Vec<Self> {
        let skip = usize::from(
            leading
                .as_ref()
                .is_some_and(|(id, _)| self.ids.first() == Some(id)),
        );
        let own = length.saturating_sub(usize::from(leading.is_some())).max(1);
        let mut blocks = Vec::new();
        let mut start = skip;
        while start < self.len() {
            let end = (start + own).min(self.len());
            let ranges = &self.ranges[start..end];
            let first = ranges.iter().map(|r| r.start).min().unwrap_or(0);
            let last = ranges.iter().map(|r| r.end).max().unwrap_or(first);
            let mut ids = Vec::with_capacity(own + 1);
            let mut own_ranges = Vec::with_capacity(own + 1);
            let mut pieces = Vec::with_capacity(own + 1);
            if let Some((id, piece)) = &leading {
                ids.push(*id);
                own_ranges.push(0..0);
                pieces.push(piece.clone());
            }
            ids.extend(&self.ids[start..end]);
            own_ranges.extend(ranges.iter().map(|r| r.start - first..r.end - first));
            pieces.extend_from_slice(&self.pieces[start..end]);
            let text = self.text[first..last].to_owned();
            blocks.push(Self::new(text, ids, own_ranges, pieces));
            start = end;
        }
        blocks
    }

    /// The text in pieces that never split a character, in order.
    pub fn clusters(&self) -> &[Cluster] {
        &self.clusters
    }

    /// Index of the cluster that token `token` belongs to.
    pub fn cluster_of(&self, token: usize) -> usize {
        self.cluster_of.get(token).copied().unwrap_or(0)
    }

    /// Token `token` as the vocabulary writes it.
    pub fn piece(&self, token: usize) -> &str {
        self.pieces.get(token).map_or("", String::as_str)
    }

    /// What token `token` says, for a label: its text with white space made visible; its bytes where it is only a
    /// part of a character; its name where it is special.
    pub fn label(&self, token: usize) -> String {
        let Some(range) = self.ranges.get(token) else {
            return String::new();
        };
        let piece = &self.pieces[token];
        if range.is_empty() {
            return visible(piece);
        }
        let cluster = &self.clusters[self.cluster_of(token)];
        let shares = cluster.tokens.len() > 1
            && cluster.tokens.clone().any(|other| {
                other != token
                    && self.ranges[other].start < range.end
                    && range.start < self.ranges[other].end
            });
        if shares && let Some(bytes) = piece_bytes(piece) {
            let hex: Vec<String> = bytes.iter().map(|b| format!("{b:02X}")).collect();
            return format!("‹{}›", hex.join(" "));
        }
        visible(&self.text[range.clone()])
    }

    /// What a cluster says, as it stands in the text.
    pub fn cluster_text(&self, cluster: &Cluster) -> &str {
        if cluster.bytes.is_empty() {
            self.pieces
                .get(cluster.tokens.start)
                .map_or("", String::as_str)
        } else {
            &self.text[cluster.bytes.clone()]
        }
    }
}

/// Joins tokens that share a character or a grapheme.
fn clusters(text: &str, ranges: &[Range<usize>]) -> Vec<Cluster> {
    let mut starts = vec![false; text.len() + 1];
    for (start, _) in text.grapheme_indices(true) {
        starts[start] = true;
    }
    starts[text.len()] = true;
    let mut clusters: Vec<Cluster> = Vec::with_capacity(ranges.len());
    for (token, range) in ranges.iter().enumerate() {
        if let Some(last) = clusters.last_mut() {
            let overlaps = range.start < last.bytes.end;
            let within = !range.is_empty() && !starts[range.start] && !last.bytes.is_empty();
            if overlaps || within {
                last.tokens.end = token + 1;
                last.bytes.end = last.bytes.end.max(range.end);
                continue;
            }
        }
        clusters.push(Cluster {
            tokens: token..token + 1,
            bytes: range.clone(),
        });
    }
    clusters
}

/// A text with its white space and control characters made visible.
pub fn visible(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 4);
    for c in text.chars() {
        match c {
            ' ' => out.push('·'),
            '\n' => out.push('⏎'),
            '\t' => out.push('→'),
            c if c.is_control() => out.push_str(&format!("\\x{:02X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

/// The bytes of a vocabulary entry that is written byte by byte: GPT-2's printable alphabet, or `<0xE4>`.
fn piece_bytes(piece: &str) -> Option<Vec<u8>> {
    if let Some(hex) = piece.strip_prefix("<0x").and_then(|p| p.strip_suffix('>')) {
        return u8::from_str_radix(hex, 16).ok().map(|b| vec![b]);
    }
    piece.chars().map(byte_of).collect()
}

/// GPT-2's alphabet: printable Latin-1 stands for itself, the 68 other bytes for U+0100 and up, in order.
fn byte_of(c: char) -> Option<u8> {
    let code = u32::from(c);
    let stands_for_itself = |b: u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    if stands_for_itself(code) {
        return u8::try_from(code).ok();
    }
    let nth = code.checked_sub(256)? as usize;
    (0..=255u32)
        .filter(|&b| !stands_for_itself(b))
        .nth(nth)
        .and_then(|b| u8::try_from(b).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::built_in;

    fn encode(text: &str) -> TokenizedText {
        let model = built_in().unwrap();
        model
            .tokenizer
            .encode(text, model.spec.vocab_size, Bos::Auto)
            .unwrap()
    }

    #[test]
    fn clusters_cover_the_text_whole() {
        for text in [
            "plain English text.\n\nNew line",
            "数学は楽しい。",
            "👩‍👩‍👧 family and e\u{301}a\u{308} marks",
            "שלום עולם",
            "tab\tand \u{7} bell",
        ] {
            let tokens = encode(text);
            let joined: String = tokens
                .clusters()
                .iter()
                .map(|c| tokens.cluster_text(c))
                .collect();
            assert_eq!(joined, text);
            for cluster in tokens.clusters() {
                assert!(!tokens.cluster_text(cluster).contains('\u{FFFD}'));
            }
            let covered: usize = tokens.clusters().iter().map(|c| c.tokens.len()).sum();
            assert_eq!(covered, tokens.len());
        }
    }

    /// What tokens stand for, as the vocabulary has it: the way back.
    fn decoded(tokens: &TokenizedText) -> String {
        let pieces = (0..tokens.len()).map(|t| piece_bytes(tokens.piece(t)).unwrap());
        String::from_utf8(pieces.flatten().collect()).unwrap()
    }

    #[test]
    fn no_byte_is_left_without_a_token() {
        let mut ranges = vec![0..0, 1..2, 4..6, 4..6, 6..6, 7..8];
        close_gaps(&mut ranges, 10);
        assert_eq!(ranges, [0..0, 0..4, 4..6, 4..7, 6..6, 7..10]);
        let mut none = [0..0, 0..0];
        close_gaps(&mut none, 3);
        assert_eq!(none, [0..0, 0..0]);
    }

    #[test]
    fn texts_come_back_from_their_tokens() {
        for text in [
            "Plain English, with numbers 1234567 and (punctuation)!\r\n\r\n\tindented",
            "fn main() { let x: Vec<u8> = vec![0; 16]; }\n    // four spaces\n",
            "数学は楽しい。한국어도 됩니다. 中文也可以。",
            "👩‍👩‍👧 🏳️‍🌈 👍🏽 families, flags and skins",
            "e\u{301}a\u{308}\u{323} marks that combine, and ones \u{301} alone",
            "שלום עולם, مرحبا بالعالم \u{200F}mixed\u{200E}",
            "\u{FFFD} what was no UTF-8 \u{FFFD}\u{FFFD}",
            "  leading and trailing  ",
        ] {
            assert_eq!(decoded(&encode(text)), text);
        }
    }

    #[test]
    fn a_beginning_is_put_in_front_once_and_as_the_setting_says() {
        let model = built_in().unwrap();
        let tokenizer = Tokenizer::from_bytes(
            "t",
            include_bytes!("../../assets/built-in-model/tokenizer.json"),
        )
        .unwrap()
        .with_bos(Some(0), true);
        let ids = |text: &str, bos| {
            let vocab_size = model.spec.vocab_size;
            tokenizer.encode(text, vocab_size, bos).unwrap().ids
        };
        let plain = ids("a b", Bos::Off);
        assert_eq!(ids("a b", Bos::Auto), [&[0], &plain[..]].concat());
        assert_eq!(ids("a b", Bos::On), ids("a b", Bos::Auto));
        // A text that begins with it already gets no second one.
        let begun = format!("{}a b", tokenizer.piece(0));
        let by_itself = ids(&begun, Bos::Off);
        if by_itself[0] == 0 {
            assert_eq!(ids(&begun, Bos::Auto), by_itself);
        }
        let silent = tokenizer.with_bos(Some(0), false);
        let vocab_size = model.spec.vocab_size;
        assert_eq!(
            silent.encode("a b", vocab_size, Bos::Auto).unwrap().ids,
            plain
        );
        assert_eq!(silent.encode("a b", vocab_size, Bos::On).unwrap().ids[0], 0);
    }

    #[test]
    fn a_split_character_is_one_cluster_and_its_tokens_show_bytes() {
        // The built-in vocabulary was trained on English: 数 takes three byte tokens.
        let tokens = encode("数");
        assert!(tokens.len() > 1);
        assert_eq!(tokens.clusters().len(), 1);
        assert_eq!(tokens.cluster_text(&tokens.clusters()[0]), "数");
        let labels: Vec<String> = (0..tokens.len()).map(|t| tokens.label(t)).collect();
        assert_eq!(labels.join("").replace(['‹', '›', ' '], ""), "E695B0");
    }

    #[test]
    fn labels_show_white_space() {
        let tokens = encode("a\n b");
        let labels: String = (0..tokens.len()).map(|t| tokens.label(t)).collect();
        assert_eq!(labels, "a⏎·b");
    }

    #[test]
    fn nonsense_is_refused_in_a_sentence() {
        let error = Tokenizer::from_bytes("x/tokenizer.json", b"[1, 2").unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("x/tokenizer.json: is not a tokenizer")
        );
    }
}
