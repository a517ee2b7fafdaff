//! Matrix products, by the same library that candle calls, but from and into plain slices: nothing is copied on the way,
//! and a product can be added to what is there.

use candle_core::{Storage, Tensor};

use crate::{Error, Result};

/// What becomes of what `out` holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// It is overwritten.
    Replace,
    /// The product, times this, is added to it.
    Add(f32),
}

/// `x W^T` for rows `x` (`[T, K]`) and a weight `[N, K]`, into `out` (`[T, N]`).
///
/// # Errors
/// When sizes do not fit, or the weight is not f32 on the CPU.
pub fn product(x: &[f32], weight: &Tensor, out: &mut [f32], mode: Mode) -> Result<()> {
    let (n, k) = weight.dims2()?;
    let rows = x.len() / k.max(1);
    if x.len() != rows * k || out.len() != rows * n {
        return Err(candle_core::Error::Msg(format!(
            "a product of {} numbers with a weight of {n} x {k} cannot give {}",
            x.len(),
            out.len()
        ))
        .into());
    }
    if rows == 0 || n == 0 {
        return Ok(());
    }
    with_slice(weight, |weight| {
        let (read, factor) = match mode {
            Mode::Replace => (false, 1.0),
            Mode::Add(factor) => (true, factor),
        };
        let threads = rayon::current_num_threads();
        let parallelism = if threads > 1 {
            gemm::Parallelism::Rayon(threads)
        } else {
            gemm::Parallelism::None
        };
        // SAFETY: the three slices hold `rows x k`, `n x k` and `rows x n` numbers in row-major order, as was
        // checked above and as `with_slice` gives a contiguous tensor of `n x k`; `out` is borrowed alone.
        unsafe {
            gemm::gemm(
                rows,
                n,
                k,
                out.as_mut_ptr(),
                1,
                n as isize,
                read,
                x.as_ptr(),
                1,
                k as isize,
                weight.as_ptr(),
                k as isize,
                1,
                1.0,
                factor,
                false,
                false,
                false,
                parallelism,
            );
        }
    })
}

/// Lends the numbers of a contiguous f32 tensor on the CPU, without a copy.
fn with_slice<R>(tensor: &Tensor, use_it: impl FnOnce(&[f32]) -> R) -> Result<R> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    match (&*storage, layout.contiguous_offsets()) {
        (Storage::Cpu(storage), Some((start, end))) => {
            Ok(use_it(&storage.as_slice::<f32>()?[start..end]))
        }
        _ => Err(Error::Compute(candle_core::Error::Msg(
            "a tensor is not on the CPU".to_owned(),
        ))),
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn products_equal_their_formula() {
        let (rows, n, k) = (5, 7, 3);
        let x: Vec<f32> = (0..rows * k).map(|i| (i as f32 * 0.7).sin()).collect();
        let w: Vec<f32> = (0..n * k).map(|i| (i as f32 * 0.3).cos()).collect();
        let weight = Tensor::from_vec(w.clone(), (n, k), &Device::Cpu).unwrap();
        let want = |row: usize, col: usize| -> f64 {
            (0..k)
                .map(|i| f64::from(x[row * k + i]) * f64::from(w[col * k + i]))
                .sum()
        };
        let mut out = vec![f32::NAN; rows * n];
        product(&x, &weight, &mut out, Mode::Replace).unwrap();
        for (i, value) in out.iter().enumerate() {
            assert!((f64::from(*value) - want(i / n, i % n)).abs() < 1e-5);
        }
        let mut out = vec![1.0; rows * n];
        product(&x, &weight, &mut out, Mode::Add(0.5)).unwrap();
        for (i, value) in out.iter().enumerate() {
            assert!((f64::from(*value) - 1.0 - 0.5 * want(i / n, i % n)).abs() < 1e-5);
        }
        assert!(product(&x, &weight, &mut out[1..], Mode::Replace).is_err());
        // A part of a larger weight is lent from where it lies.
        let part = weight.narrow(0, 2, 3).unwrap();
        let mut out = vec![0.0; rows * 3];
        product(&x, &part, &mut out, Mode::Replace).unwrap();
        assert!((f64::from(out[4]) - want(1, 3)).abs() < 1e-5);
    }
}
