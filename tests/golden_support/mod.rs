//! Reading golden files and comparing with them.

mod aah;

use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
};

use headscope::engine::{
    attend::AttentionKernel,
    cpu::CpuAttention,
    gpu::{GpuAttention, GpuContext},
};
use safetensors::{Dtype, SafeTensors};

/// One device for all tests of a process.
static GPU: OnceLock<GpuContext> = OnceLock::new();

/// `HEADSCOPE_GOLDEN_DIR`, or `tests/golden`.
pub fn golden_dir() -> PathBuf {
    std::env::var_os("HEADSCOPE_GOLDEN_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden"),
        PathBuf::from,
    )
}

/// Every attention kernel there is here, with its tolerance.
pub fn kernels() -> Vec<(&'static str, Box<dyn AttentionKernel>, f32)> {
    let gpu = GPU
        .get_or_init(|| {
            GpuContext::headless().expect("tests need a graphics adapter, be it in software")
        })
        .clone();
    vec![
        ("CPU", Box::new(CpuAttention), 1e-4),
        ("GPU", Box::new(GpuAttention::new(gpu)), 5e-4),
    ]
}

pub fn read_json(path: &Path) -> serde_json::Value {
    let text = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&text).unwrap()
}

/// A safetensors file in memory.
pub struct Tensors(Vec<u8>);

impl Tensors {
    pub fn open(path: &Path) -> Self {
        Self(std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    }

    pub fn get(&self, name: &str) -> Vec<f32> {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        let view = tensors
            .tensor(name)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(view.dtype(), Dtype::F32, "{name}");
        view.data()
            .as_chunks::<4>()
            .0
            .iter()
            .map(|&b| f32::from_le_bytes(b))
            .collect()
    }

    /// As [`Self::get`]; `None` where there is no such tensor.
    pub fn find(&self, name: &str) -> Option<Vec<f32>> {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        tensors.tensor(name).ok().map(|_| self.get(name))
    }

    pub fn integers(&self, name: &str) -> Vec<i64> {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        let view = tensors.tensor(name).unwrap();
        assert_eq!(view.dtype(), Dtype::I64, "{name}");
        view.data()
            .as_chunks::<8>()
            .0
            .iter()
            .map(|&b| i64::from_le_bytes(b))
            .collect()
    }
}

/// All numbers within `tolerance` of what is wanted: absolute, and relative beyond 1.
pub fn close(got: &[f32], want: &[f32], tolerance: f32, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: count");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let allowed = tolerance * w.abs().max(1.0);
        assert!((g - w).abs() <= allowed, "{what}: [{i}] is {g}, not {w}");
    }
}
