//! A small seeded generator (SplitMix64): the same numbers on every platform and in every version.

/// Deterministic random numbers.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// From several numbers that together name a use, such as (seed, layer, step).
    pub fn of(parts: &[u64]) -> Self {
        let mut rng = Self(0x6865_6164_7363_6F70);
        for &part in parts {
            rng.0 ^= part;
            rng.0 = rng.next_u64();
        }
        rng
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in 0..1.
    pub fn unit(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Uniform in `0..n`, without bias; 0 for n = 0.
    pub fn below(&mut self, n: usize) -> usize {
        let n = n as u64;
        if n == 0 {
            return 0;
        }
        // Reject the incomplete last interval.
        let limit = u64::MAX - u64::MAX % n;
        loop {
            let value = self.next_u64();
            if value < limit {
                return (value % n) as usize;
            }
        }
    }

    /// A random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}
