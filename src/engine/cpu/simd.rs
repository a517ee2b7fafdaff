//! The vector routines of the CPU engine, written once in portable Rust and compiled twice: for
//! processors with AVX2 and FMA, found at run time, and for all others.

/// Queries handled side by side: one lane each.
pub const LANES: usize = 16;
/// Rows of a register tile: keys in `Q K^T`, head dimensions in `P V`.
pub const ROWS: usize = 4;

/// One value for each of [`LANES`] queries.
pub type Lane = [f32; LANES];

/// Calls `$body::<FMA>($args)` with the widest instructions this processor has.
macro_rules! dispatch {
    ($name:ident, $body:ident, ($($arg:ident : $ty:ty),* $(,)?)) => {
        fn $name($($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn fast($($arg: $ty),*) {
                    $body::<true>($($arg),*)
                }
                if std::arch::is_x86_feature_detected!("avx2")
                    && std::arch::is_x86_feature_detected!("fma")
                {
                    // SAFETY: both features were just found on this processor.
                    unsafe { fast($($arg),*) };
                    return;
                }
            }
            $body::<{ cfg!(target_arch = "aarch64") }>($($arg),*)
        }
    };
}
pub(super) use dispatch;

/// `a * b + c`, fused where `FMA` says that the target does this in one instruction.
#[inline(always)]
pub fn fused<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// One register tile: `acc[r][lane] += sum_p a[p][r] * b[p][lane]`.
///
/// `a` holds [`ROWS`] values and `b` [`LANES`] values a step; the shorter one ends the sum.
#[inline(always)]
pub fn tile<const FMA: bool>(a: &[f32], b: &[Lane], acc: &mut [Lane; ROWS]) {
    // A local copy stays in registers through the loop.
    let mut sum = *acc;
    let (a_steps, _) = a.as_chunks::<ROWS>();
    for (rows, lanes) in a_steps.iter().zip(b) {
        for r in 0..ROWS {
            for lane in 0..LANES {
                sum[r][lane] = fused::<FMA>(rows[r], lanes[lane], sum[r][lane]);
            }
        }
    }
    *acc = sum;
}

/// `e^x` for x <= 0, to about 2 units in the last place; exactly 0 below -87 (and for minus infinity).
#[inline(always)]
pub fn exp_lane<const FMA: bool>(x: Lane) -> Lane {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts, so that x - n ln 2 keeps its low bits.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let mut out = [0.0; LANES];
    for lane in 0..LANES {
        let value = x[lane].max(-87.0);
        let shifted = fused::<FMA>(value, LOG2_E, ROUND);
        let n = shifted - ROUND;
        let r = fused::<FMA>(n, -LN2_LOW, fused::<FMA>(n, -LN2_HIGH, value));
        // Taylor's series, its last coefficients nudged for the interval ±ln 2 / 2.
        let mut p = fused::<FMA>(r, 1.987_569_1e-4, 1.398_199_9e-3);
        p = fused::<FMA>(p, r, 8.333_452e-3);
        p = fused::<FMA>(p, r, 4.166_579_6e-2);
        p = fused::<FMA>(p, r, 1.666_666_5e-1);
        p = fused::<FMA>(p, r, 0.5);
        p = fused::<FMA>(p, r * r, r + 1.0);
        let scaled = f32::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 23));
        out[lane] = if x[lane] < -87.0 { 0.0 } else { scaled };
    }
    out
}

/// `tanh(x)`, as `1 - 2 / (e^2x + 1)` by magnitude: exact to a few units in the last place beyond |x| = 0.1, and by its
/// series below, where that difference cancels.
#[inline(always)]
pub fn tanh_lane<const FMA: bool>(x: &Lane) -> Lane {
    let mut exponent = [0.0; LANES];
    for lane in 0..LANES {
        exponent[lane] = -2.0 * x[lane].abs();
    }
    let small = exp_lane::<FMA>(exponent);
    let mut out = [0.0; LANES];
    for lane in 0..LANES {
        let large = ((1.0 - small[lane]) / (1.0 + small[lane])).copysign(x[lane]);
        let square = x[lane] * x[lane];
        let series = x[lane]
            * (1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 + square * (-17.0 / 315.0))));
        out[lane] = if x[lane].abs() < 0.1 { series } else { large };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_to_the_library() {
        let mut x = 0.0f32;
        while x > -86.9 {
            let got = exp_lane::<false>([x; LANES])[3];
            let want = f64::from(x).exp();
            assert!(
                ((f64::from(got) - want) / want).abs() < 4e-7,
                "exp({x}) = {got}, not {want}"
            );
            x -= 0.0137;
        }
        assert_eq!(exp_lane::<false>([f32::NEG_INFINITY; LANES])[0], 0.0);
        assert_eq!(exp_lane::<true>([-100.0; LANES])[0], 0.0);
        assert_eq!(exp_lane::<false>([0.0; LANES])[0], 1.0);
    }
}
