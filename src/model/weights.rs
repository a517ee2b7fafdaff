//! [`WeightStore`]: named tensors in memory-mapped safetensors or GGUF files, converted to f32 one at a time.

use std::{
    collections::HashMap,
    fs::File,
    path::{Path, PathBuf},
};

use candle_core::{
    CpuStorage, Device, Tensor,
    quantized::{GgmlDType, QuantizedType},
};
use rayon::prelude::*;
use safetensors::{Dtype, SafeTensors};

use super::gguf::GgufFile;
use crate::{Error, Result};

/// Numbers converted by one task.
const PART: usize = 64 * 1024;

/// Longest safetensors header that is read. Real ones are below 1 MB.
const MAX_HEADER_BYTES: u64 = 64 << 20;

/// Bytes that stay where they are: a mapped file, or data compiled into the program.
enum Bytes {
    Mapped(memmap2::Mmap),
    Static(&'static [u8]),
}

impl Bytes {
    fn map(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|e| Error::io("open", path, e))?;
        // SAFETY: the mapping is only read. Another process that shortens the file while it is
        // mapped could still end this one; that is the known price of mapping.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(|e| Error::io("map", path, e))?;
        Ok(Self::Mapped(map))
    }

    fn get(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Static(bytes) => bytes,
        }
    }
}

/// How a tensor's numbers are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    F32,
    F16,
    BF16,
    /// Blocks of a GGUF file, which share their scales.
    Blocks(GgmlDType),
    /// None that is read, by its name.
    Other(String),
}

impl Coding {
    /// Numbers in a block, and its bytes.
    fn block(&self) -> Option<(usize, usize)> {
        Some(match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::BF16 => (1, 2),
            Self::Blocks(dtype) => (dtype.block_size(), dtype.type_size()),
            Self::Other(_) => return None,
        })
    }

    /// Bytes of `count` numbers; `None` where that is no whole number of blocks.
    pub fn bytes(&self, count: usize) -> Option<usize> {
        let (numbers, bytes) = self.block()?;
        count
            .is_multiple_of(numbers)
            .then(|| (count / numbers).checked_mul(bytes))?
    }
}

impl From<Dtype> for Coding {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32,
            Dtype::F16 => Self::F16,
            Dtype::BF16 => Self::BF16,
            other => Self::Other(format!("{other:?}")),
        }
    }
}

/// Where one tensor lies.
struct Entry {
    file: usize,
    coding: Coding,
    shape: Vec<usize>,
    /// Byte range within the file.
    range: std::ops::Range<usize>,
}

/// All tensors of a model, by name. Data is read only when asked for.
pub struct WeightStore {
    files: Vec<(String, Bytes)>,
    entries: HashMap<String, Entry>,
}

impl std::fmt::Debug for WeightStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WeightStore")
            .field("tensors", &self.entries.len())
            .finish_non_exhaustive()
    }
}

impl WeightStore {
    /// Maps a GGUF file.
    ///
    /// # Errors
    /// When it cannot be read, is not GGUF, or is cut short.
    pub fn open_gguf(path: &Path) -> Result<Self> {
        let mut store = Self::empty();
        let origin = path.display().to_string();
        let bytes = Bytes::map(path)?;
        for tensor in GgufFile::parse(&origin, bytes.get())?.tensors {
            let entry = Entry {
                file: 0,
                coding: tensor.coding,
                shape: tensor.shape,
                range: tensor.range,
            };
            store.entries.insert(tensor.name, entry);
        }
        store.files.push((origin, bytes));
        Ok(store)
    }

    /// The bytes of the first file.
    pub(super) fn first_file(&self) -> (&str, &[u8]) {
        self.files
            .first()
            .map_or(("", &[]), |(origin, bytes)| (origin.as_str(), bytes.get()))
    }

    /// Names of all tensors, in no order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Maps safetensors files. A tensor's name must stand in only one of them.
    ///
    /// # Errors
    /// When a file cannot be read, is not safetensors, or is cut short.
    pub fn open(paths: &[PathBuf]) -> Result<Self> {
        let mut store = Self::empty();
        for path in paths {
            store.add(path.display().to_string(), Bytes::map(path)?)?;
        }
        Ok(store)
    }

    /// Tensors from bytes compiled into the program.
    ///
    /// # Errors
    /// When they are not safetensors.
    pub fn from_static(origin: &str, bytes: &'static [u8]) -> Result<Self> {
        let mut store = Self::empty();
        store.add(origin.to_owned(), Bytes::Static(bytes))?;
        Ok(store)
    }

    fn empty() -> Self {
        Self {
            files: Vec::new(),
            entries: HashMap::new(),
        }
    }

    fn add(&mut self, origin: String, bytes: Bytes) -> Result<()> {
        let refuse = |message: String| Error::Weights {
            origin: origin.clone(),
            message,
        };
        let data = bytes.get();
        let header = data
            .first_chunk::<8>()
            .map(|length| u64::from_le_bytes(*length))
            .ok_or_else(|| refuse("is not a safetensors file: it is too short".to_owned()))?;
        if header > MAX_HEADER_BYTES || header > data.len() as u64 - 8 {
            return Err(refuse(format!(
                "is not a safetensors file, or is cut short: its header would be {header} bytes long, \
                 the file has {}",
                data.len()
            )));
        }
        let tensors = SafeTensors::deserialize(data).map_err(|e| {
            refuse(format!(
                "is not a valid safetensors file ({e}); download it again"
            ))
        })?;
        let start = data.as_ptr() as usize;
        for (name, view) in tensors.iter() {
            let offset = view.data().as_ptr() as usize - start;
            let entry = Entry {
                file: self.files.len(),
                coding: view.dtype().into(),
                shape: view.shape().to_vec(),
                range: offset..offset + view.data().len(),
            };
            if self.entries.insert(name.to_owned(), entry).is_some() {
                return Err(refuse(format!(
                    "the tensor {name} stands in another file of this model too"
                )));
            }
        }
        self.files.push((origin, bytes));
        Ok(())
    }

    /// Whether a tensor of this name exists.
    pub fn contains(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// The shape of a tensor; `None` where there is none of this name.
    pub fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.entries.get(name).map(|e| e.shape.clone())
    }

    /// One tensor in f32, `shape` checked before memory is taken.
    ///
    /// # Errors
    /// Names the tensor when it is missing, has another shape, or a type other than f32, f16 and bf16.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        Ok(Tensor::from_vec(
            self.values(name, shape)?,
            shape,
            &Device::Cpu,
        )?)
    }

    /// As [`Self::tensor`], as plain numbers in row-major order.
    ///
    /// # Errors
    /// As [`Self::tensor`].
    pub fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let entry = self.entries.get(name).ok_or_else(|| Error::Weights {
            origin: self.files.first().map_or_else(String::new, |f| f.0.clone()),
            message: format!(
                "the tensor {name} is missing; the file does not fit its configuration"
            ),
        })?;
        let (origin, bytes) = &self.files[entry.file];
        if entry.shape != shape {
            return Err(Error::Weights {
                origin: origin.clone(),
                message: format!(
                    "the tensor {name} has shape {:?}, but the configuration asks for {shape:?}",
                    entry.shape
                ),
            });
        }
        let data = &bytes.get()[entry.range.clone()];
        let count: usize = shape.iter().product();
        let refuse = |message: String| Error::Weights {
            origin: origin.clone(),
            message: format!("the tensor {name} {message}"),
        };
        if let Coding::Other(kind) = &entry.coding {
            return Err(refuse(format!(
                "is of type {kind}, which is not read; save the model as F32, F16, BF16 or one of GGUF's Q types"
            )));
        }
        let expected = entry.coding.bytes(count);
        if expected != Some(data.len()) {
            return Err(refuse(format!(
                "has {} bytes, which {shape:?} numbers do not take",
                data.len()
            )));
        }
        decode(data, &entry.coding, count)?
            .ok_or_else(|| refuse("holds numbers that are not finite: it is damaged".to_owned()))
    }
}

/// Converts `count` numbers; `None` where one is not finite.
fn decode(data: &[u8], coding: &Coding, count: usize) -> Result<Option<Vec<f32>>> {
    let mut out = vec![0.0f32; count];
    let Some((block, block_bytes)) = coding.block() else {
        return Ok(None);
    };
    let part = (PART / block).max(1);
    let is_finite = out
        .par_chunks_mut(part * block)
        .zip(data.par_chunks(part * block_bytes))
        .map(|(out, data)| {
            // Data may lie at any address: read byte-wise.
            match coding {
                Coding::F32 => {
                    for (out, bytes) in out.iter_mut().zip(data.as_chunks::<4>().0) {
                        *out = f32::from_le_bytes(*bytes);
                    }
                }
                Coding::F16 => {
                    for (out, bytes) in out.iter_mut().zip(data.as_chunks::<2>().0) {
                        *out = half::f16::from_le_bytes(*bytes).to_f32();
                    }
                }
                Coding::BF16 => {
                    for (out, bytes) in out.iter_mut().zip(data.as_chunks::<2>().0) {
                        *out = half::bf16::from_le_bytes(*bytes).to_f32();
                    }
                }
                Coding::Blocks(dtype) => decode_blocks(*dtype, data, out)?,
                Coding::Other(_) => {}
            }
            Ok(out.iter().fold(true, |all, v| all & v.is_finite()))
        })
        .try_reduce(|| true, |a, b| Ok::<_, Error>(a && b))?;
    Ok(is_finite.then_some(out))
}

/// Decodes whole blocks by candle.
fn decode_blocks(dtype: GgmlDType, data: &[u8], out: &mut [f32]) -> Result<()> {
    // Candle reads blocks in place: a copy is aligned for all of them, wherever the file has them.
    let mut aligned = vec![0u64; data.len().div_ceil(8)];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut aligned);
    bytes[..data.len()].copy_from_slice(data);
    let blocks: Box<dyn QuantizedType> =
        dtype.from_data(std::borrow::Cow::Borrowed(&bytes[..data.len()]));
    if let CpuStorage::F32(values) = blocks.dequantize(out.len())? {
        out.copy_from_slice(&values);
    }
    Ok(())
}

/// The safetensors files of a folder: `model.safetensors`, or the shards of `model.safetensors.index.json`.
///
/// # Errors
/// Says what the folder lacks; pickled weights are named and refused.
pub fn find_safetensors(folder: &Path) -> Result<Vec<PathBuf>> {
    let single = folder.join("model.safetensors");
    if single.is_file() {
        return Ok(vec![single]);
    }
    let index_path = folder.join("model.safetensors.index.json");
    if index_path.is_file() {
        #[derive(serde::Deserialize)]
        struct Index {
            weight_map: HashMap<String, String>,
        }
        let refuse = |message: String| Error::Weights {
            origin: index_path.display().to_string(),
            message,
        };
        let text = std::fs::read(&index_path).map_err(|e| Error::io("read", &index_path, e))?;
        let index: Index = serde_json::from_slice(&text)
            .map_err(|e| refuse(format!("is not a weight index ({e}); download it again")))?;
        let mut names: Vec<String> = index.weight_map.into_values().collect();
        names.sort();
        names.dedup();
        return names
            .into_iter()
            .map(|name| {
                // A shard lies beside its index: no name may lead elsewhere.
                if Path::new(&name).file_name() != Some(name.as_ref()) {
                    return Err(refuse(format!("names a shard outside its folder: {name}")));
                }
                Ok(folder.join(name))
            })
            .collect();
    }
    let pickled = [
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
        "consolidated.00.pth",
    ]
    .into_iter()
    .find(|name| folder.join(name).exists());
    Err(Error::Weights {
        origin: folder.display().to_string(),
        message: match pickled {
            Some(name) => format!(
                "has only pickled weights ({name}), which may run code and are not opened; convert them \
                 with transformers: model.save_pretrained(folder, safe_serialization=True)"
            ),
            None => "has no model.safetensors".to_owned(),
        },
    })
}
