//! The GGUF container, versions 2 and 3: metadata, and where tensors lie. Nothing is copied but names.
//!
//! Candle has a reader of its own, but that one divides by the alignment that the file gives, and keeps an array as a
//! list of 32-byte values; a file from a stranger deserves more care. Blocks of numbers are still decoded by candle.

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
};

use candle_core::quantized::GgmlDType;

use crate::{Error, Result, model::weights::Coding};

/// What the metadata can say in one value.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::model) enum Value<'a> {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(&'a str),
    Array(Array<'a>),
}

/// Values of one type, still as the file has them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::model) struct Array<'a> {
    kind: Kind,
    count: usize,
    data: &'a [u8],
}

impl<'a> Array<'a> {
    /// Its values, in order.
    pub fn values(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let mut cursor = Cursor {
            data: self.data,
            at: 0,
        };
        let kind = self.kind;
        // All of it was walked over once already.
        (0..self.count).map_while(move |_| cursor.value(kind).ok())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }
}

/// One tensor.
#[derive(Clone, Debug)]
pub(in crate::model) struct TensorInfo {
    pub name: String,
    pub coding: Coding,
    /// Row-major: the file's dimensions, last first.
    pub shape: Vec<usize>,
    /// Bytes within the file.
    pub range: Range<usize>,
}

/// What a GGUF file says.
#[derive(Debug)]
pub(in crate::model) struct GgufFile<'a> {
    pub metadata: HashMap<&'a str, Value<'a>>,
    pub tensors: Vec<TensorInfo>,
    data: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    Array,
    U64,
    I64,
    F64,
}

impl Kind {
    fn from_code(code: u32) -> Option<Self> {
        const KINDS: [Kind; 13] = [
            Kind::U8,
            Kind::I8,
            Kind::U16,
            Kind::I16,
            Kind::U32,
            Kind::I32,
            Kind::F32,
            Kind::Bool,
            Kind::Text,
            Kind::Array,
            Kind::U64,
            Kind::I64,
            Kind::F64,
        ];
        KINDS.get(code as usize).copied()
    }

    /// Bytes of one value; `None` where it depends.
    fn width(self) -> Option<usize> {
        Some(match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
            Self::Text | Self::Array => return None,
        })
    }
}

/// Why reading stopped.
type Stop = String;

struct Cursor<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Stop> {
        let rest = &self.data[self.at..];
        if count > rest.len() {
            return Err(format!(
                "is cut short, or damaged: {count} bytes should follow at {}, but {} do",
                self.at,
                rest.len()
            ));
        }
        self.at += count;
        Ok(&rest[..count])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        let bytes = self.take(N)?;
        let mut out = [0; N];
        out.copy_from_slice(bytes);
        Ok(out)
    }

    fn u32(&mut self) -> Result<u32, Stop> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Stop> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A count of things that take at least `least` bytes each.
    fn count(&mut self, least: usize) -> Result<usize, Stop> {
        let count = self.u64()?;
        let rest = (self.data.len() - self.at) as u64;
        if count.checked_mul(least as u64).is_none_or(|n| n > rest) {
            return Err(format!(
                "is cut short, or damaged: {count} entries should follow at {}, but only {rest} bytes do",
                self.at
            ));
        }
        Ok(count as usize)
    }

    fn text(&mut self) -> Result<&'a str, Stop> {
        let length = self.count(1)?;
        let at = self.at;
        std::str::from_utf8(self.take(length)?)
            .map_err(|_| format!("is damaged: the text at {at} is not UTF-8"))
    }

    fn kind(&mut self) -> Result<Kind, Stop> {
        let at = self.at;
        let code = self.u32()?;
        Kind::from_code(code)
            .ok_or_else(|| format!("is damaged: at {at} stands a value of the unknown type {code}"))
    }

    fn value(&mut self, kind: Kind) -> Result<Value<'a>, Stop> {
        Ok(match kind {
            Kind::U8 => Value::Unsigned(self.array::<1>()?[0].into()),
            Kind::I8 => Value::Signed(i8::from_le_bytes(self.array()?).into()),
            Kind::U16 => Value::Unsigned(u16::from_le_bytes(self.array()?).into()),
            Kind::I16 => Value::Signed(i16::from_le_bytes(self.array()?).into()),
            Kind::U32 => Value::Unsigned(self.u32()?.into()),
            Kind::I32 => Value::Signed(i32::from_le_bytes(self.array()?).into()),
            Kind::F32 => Value::Float(f32::from_le_bytes(self.array()?).into()),
            Kind::Bool => Value::Bool(self.array::<1>()?[0] != 0),
            Kind::Text => Value::Text(self.text()?),
            Kind::U64 => Value::Unsigned(self.u64()?),
            Kind::I64 => Value::Signed(i64::from_le_bytes(self.array()?)),
            Kind::F64 => Value::Float(f64::from_le_bytes(self.array()?)),
            Kind::Array => {
                let kind = self.kind()?;
                if kind == Kind::Array {
                    return Err("has arrays within arrays, which no model needs".to_owned());
                }
                let count = self.count(kind.width().unwrap_or(8))?;
                let start = self.at;
                match kind.width() {
                    Some(width) => {
                        self.take(count * width)?;
                    }
                    None => {
                        for _ in 0..count {
                            self.text()?;
                        }
                    }
                }
                Value::Array(Array {
                    kind,
                    count,
                    data: &self.data[start..self.at],
                })
            }
        })
    }
}

impl<'a> GgufFile<'a> {
    /// Reads the header of a file; tensors are checked to lie within it, and beside each other.
    ///
    /// # Errors
    /// When it is not GGUF 2 or 3, is cut short, or contradicts itself.
    pub fn parse(origin: &str, data: &'a [u8]) -> Result<Self> {
        parse(data).map_err(|stop| {
            // What a program leaves that took the file for a text: bytes that are no UTF-8 were replaced.
            let header = &data[..data.len().min(4 << 20)];
            let was_text = std::str::from_utf8(header).is_ok_and(|t| t.contains('\u{FFFD}'));
            let message = if data.starts_with(b"GGUF") && was_text {
                "was saved as text, which destroyed its numbers: download it again, as it is"
                    .to_owned()
            } else {
                stop
            };
            Error::Weights {
                origin: origin.to_owned(),
                message,
            }
        })
    }

    /// A number that counts something.
    pub fn unsigned(&self, key: &str) -> Option<u64> {
        match self.metadata.get(key)? {
            Value::Unsigned(v) => Some(*v),
            Value::Signed(v) => u64::try_from(*v).ok(),
            _ => None,
        }
    }

    /// Any number.
    pub fn float(&self, key: &str) -> Option<f64> {
        match self.metadata.get(key)? {
            Value::Float(v) => Some(*v),
            Value::Unsigned(v) => Some(*v as f64),
            Value::Signed(v) => Some(*v as f64),
            _ => None,
        }
    }

    /// A yes or no.
    pub fn flag(&self, key: &str) -> Option<bool> {
        match self.metadata.get(key)? {
            Value::Bool(v) => Some(*v),
            _ => None,
        }
    }

    /// A text.
    pub fn text(&self, key: &str) -> Option<&'a str> {
        match self.metadata.get(key)? {
            Value::Text(v) => Some(v),
            _ => None,
        }
    }

    /// An array.
    pub fn array(&self, key: &str) -> Option<Array<'a>> {
        match self.metadata.get(key)? {
            Value::Array(v) => Some(*v),
            _ => None,
        }
    }

    /// The numbers of a tensor that is a short list of F32; `None` for others.
    pub fn small_values(&self, tensor: &TensorInfo) -> Option<Vec<f64>> {
        let bytes = self.data.get(tensor.range.clone())?;
        (tensor.coding == Coding::F32 && bytes.len() <= 64 << 10).then(|| {
            let numbers = bytes.as_chunks::<4>().0.iter();
            numbers.map(|b| f32::from_le_bytes(*b).into()).collect()
        })
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|t| t.name == name)
    }
}

fn parse(data: &[u8]) -> Result<GgufFile<'_>, Stop> {
    let mut cursor = Cursor { data, at: 0 };
    if cursor.take(4).ok() != Some(b"GGUF") {
        return Err("is not a GGUF file".to_owned());
    }
    let version = cursor.u32()?;
    if !(2..=3).contains(&version) {
        return Err(if version.swap_bytes() == 3 {
            "is a GGUF file for big-endian machines; convert it for little-endian ones".to_owned()
        } else {
            format!("is GGUF version {version}; versions 2 and 3 are read")
        });
    }
    // The least that a tensor and a key take in the file.
    let tensor_count = cursor.count(8 + 4 + 4 + 8)?;
    let key_count = cursor.count(8 + 4 + 1)?;
    let mut metadata = HashMap::new();
    for _ in 0..key_count {
        let key = cursor.text()?;
        let kind = cursor.kind()?;
        let value = cursor
            .value(kind)
            .map_err(|stop| format!("{stop} (in {key})"))?;
        if metadata.insert(key, value).is_some() {
            return Err(format!("is damaged: it has the key {key} twice"));
        }
    }
    let mut file = GgufFile {
        metadata,
        tensors: Vec::new(),
        data,
    };
    let alignment = match file.unsigned("general.alignment") {
        None => 32,
        // By the format a multiple of 8.
        Some(n) if n > 0 && n % 8 == 0 && n <= 1 << 20 => n as usize,
        Some(n) => {
            return Err(format!(
                "is damaged: its tensors would be aligned to {n} bytes"
            ));
        }
    };
    let mut names = HashSet::new();
    for _ in 0..tensor_count {
        let tensor = tensor(&mut cursor)?;
        if !names.insert(tensor.name.clone()) {
            return Err(format!(
                "is damaged: it has the tensor {} twice",
                tensor.name
            ));
        }
        file.tensors.push(tensor);
    }
    let start = cursor.at.next_multiple_of(alignment);
    place(&mut file.tensors, start, alignment, data.len())?;
    Ok(file)
}

/// One tensor; its range is still that within the data.
fn tensor(cursor: &mut Cursor<'_>) -> Result<TensorInfo, Stop> {
    let name = cursor.text()?.to_owned();
    let dimensions = cursor.u32()?;
    if !(1..=4).contains(&dimensions) {
        return Err(format!(
            "is damaged: the tensor {name} would have {dimensions} dimensions"
        ));
    }
    let mut shape = Vec::with_capacity(4);
    for _ in 0..dimensions {
        shape.push(usize::try_from(cursor.u64()?).map_err(|_| too_large(&name))?);
    }
    let row = shape[0];
    shape.reverse();
    let coding = coding(cursor.u32()?);
    let offset = usize::try_from(cursor.u64()?).map_err(|_| too_large(&name))?;
    let count = shape
        .iter()
        .try_fold(1usize, |product, &n| product.checked_mul(n))
        .ok_or_else(|| too_large(&name))?;
    let bytes = match &coding {
        // Its size is not known; what is not read does no harm.
        Coding::Other(_) => 0,
        coding => {
            if coding.bytes(row).is_none() {
                return Err(format!(
                    "is damaged: rows of {row} numbers are no whole blocks in the tensor {name}"
                ));
            }
            coding.bytes(count).ok_or_else(|| too_large(&name))?
        }
    };
    let end = offset.checked_add(bytes).ok_or_else(|| too_large(&name))?;
    Ok(TensorInfo {
        name,
        coding,
        shape,
        range: offset..end,
    })
}

fn too_large(name: &str) -> Stop {
    format!("is damaged: the tensor {name} would be larger than any memory")
}

/// From ranges within the data to ranges within the file; none may leave it or lie on another.
fn place(
    tensors: &mut [TensorInfo],
    start: usize,
    alignment: usize,
    file_len: usize,
) -> Result<(), Stop> {
    for tensor in tensors.iter_mut() {
        let range = tensor.range.clone();
        let (from, to) = (start.checked_add(range.start), start.checked_add(range.end));
        match (from, to) {
            (Some(from), Some(to)) if to <= file_len && range.start.is_multiple_of(alignment) => {
                tensor.range = from..to;
            }
            _ => {
                return Err(format!(
                    "is cut short, or damaged: the tensor {} would lie at bytes {} to {} of its data, but the \
                     file is {file_len} bytes long; download it again",
                    tensor.name, range.start, range.end
                ));
            }
        }
    }
    let mut order: Vec<&TensorInfo> = tensors.iter().filter(|t| !t.range.is_empty()).collect();
    order.sort_by_key(|t| t.range.start);
    match order.windows(2).find(|w| w[1].range.start < w[0].range.end) {
        Some(pair) => Err(format!(
            "is damaged: the tensors {} and {} lie on each other",
            pair[0].name, pair[1].name
        )),
        None => Ok(()),
    }
}

/// GGML's codes of tensor types.
fn coding(code: u32) -> Coding {
    use GgmlDType as D;
    Coding::Blocks(match code {
        0 => return Coding::F32,
        1 => return Coding::F16,
        30 => return Coding::BF16,
        2 => D::Q4_0,
        3 => D::Q4_1,
        6 => D::Q5_0,
        7 => D::Q5_1,
        8 => D::Q8_0,
        10 => D::Q2K,
        11 => D::Q3K,
        12 => D::Q4K,
        13 => D::Q5K,
        14 => D::Q6K,
        15 => D::Q8K,
        other => return Coding::Other(other_name(other)),
    })
}

/// Names of types that are not read.
fn other_name(code: u32) -> String {
    match code {
        9 => "Q8_1",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        other => return format!("number {other} of GGML"),
    }
    .to_owned()
}
