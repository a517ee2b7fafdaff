//! Windowed causal attention on the CPU: blocked, with an online softmax, never a `T x T` matrix.
//!
//! Sixteen queries run side by side, one in each vector lane: scores, softmax and outputs are then all
//! lane-wise, and no step needs a sum across a register. Keys come in tiles of four, from the nearest
//! to the farthest, and a tile outside every window of its sixteen queries is never visited. Work items (a head
//! and 64 queries) go to the cores longest first.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::simd::{LANES, Lane, ROWS, dispatch, exp_lane, tanh_lane, tile};
use crate::{
    attention::Window,
    engine::attend::{Attended, AttentionKernel, AttentionShape, HeadJob, Qkv},
};

/// Strips of [`LANES`] queries in a work item: they share each block of keys while it is in the cache.
const STRIPS: usize = 4;
/// Keys scored at a time.
const KEY_BLOCK: usize = 128;
/// Queries in one partial sum of a distance profile.
const PROFILE_CHUNK: usize = 512;

/// The CPU attention kernel.
#[derive(Debug, Default)]
pub struct CpuAttention;

impl AttentionKernel for CpuAttention {
    fn attend(
        &mut self,
        qkv: &Qkv,
        jobs: &[HeadJob],
        sinks: usize,
        into: &mut Attended,
    ) -> Result<(), crate::Error> {
        attend(qkv, jobs, sinks, into);
        Ok(())
    }
}

/// Keys and values of the heads in use, laid out for [`tile`].
struct Packed {
    /// Per key/value head, `[T / ROWS, D, ROWS]`: four keys beside each other.
    keys: Vec<Vec<f32>>,
    /// Per key/value head, `[D / ROWS, T, ROWS]`: four dimensions beside each other.
    values: Vec<Vec<f32>>,
}

impl Packed {
    fn new(qkv: &Qkv, heads: impl Iterator<Item = usize>, with_values: bool) -> Self {
        use rayon::prelude::*;
        let shape = &qkv.shape;
        let mut used = vec![false; shape.n_kv_heads];
        for head in heads {
            used[shape.kv_head(head)] = true;
        }
        let pack = |wanted: bool, of: fn(&Qkv, usize) -> Vec<f32>| -> Vec<Vec<f32>> {
            used.par_iter()
                .enumerate()
                .map(|(kv, &is_used)| {
                    if is_used && wanted {
                        of(qkv, kv)
                    } else {
                        Vec::new()
                    }
                })
                .collect()
        };
        Self {
            keys: pack(true, pack_keys),
            values: pack(with_values, pack_values),
        }
    }
}

fn pack_keys(qkv: &Qkv, kv: usize) -> Vec<f32> {
    let AttentionShape {
        seq_len,
        n_kv_heads,
        head_dim,
        ..
    } = qkv.shape;
    let mut packed = vec![0.0; seq_len.next_multiple_of(ROWS) * head_dim];
    for j in 0..seq_len {
        let row = &qkv.k[(j * n_kv_heads + kv) * head_dim..][..head_dim];
        let panel = &mut packed[j / ROWS * ROWS * head_dim..][..ROWS * head_dim];
        for (d, &value) in row.iter().enumerate() {
            panel[d * ROWS + j % ROWS] = value;
        }
    }
    packed
}

fn pack_values(qkv: &Qkv, kv: usize) -> Vec<f32> {
    let AttentionShape {
        seq_len,
        n_kv_heads,
        head_dim,
        ..
    } = qkv.shape;
    // Rows of zeros beyond T let the last key block run at its full width.
    let rows = seq_len.next_multiple_of(ROWS);
    let mut packed = vec![0.0; head_dim.div_ceil(ROWS) * rows * ROWS];
    // In blocks of tokens that stay in the first cache: panels lie a power of two apart.
    for block in (0..seq_len).step_by(64) {
        for d in (0..head_dim).step_by(ROWS) {
            let count = ROWS.min(head_dim - d);
            for j in block..(block + 64).min(seq_len) {
                let from = &qkv.v[(j * n_kv_heads + kv) * head_dim + d..][..count];
                packed[(d / ROWS * rows + j) * ROWS..][..count].copy_from_slice(from);
            }
        }
    }
    packed
}

/// Sixteen queries of one head: which keys they see, and their running softmax.
struct Strip {
    /// First query.
    start: usize,
    /// Keys of the window range: `[low, high)`, multiples of [`ROWS`].
    low: usize,
    high: usize,
    /// The sink range `[sink_low, sink_end)`, multiples of [`ROWS`]; it ends at `low` or before.
    sink_low: usize,
    sink_end: usize,
    /// `[D]` lanes, already scaled.
    q: Vec<Lane>,
    /// `[D rounded up to ROWS]` lanes, not yet divided by `sum`.
    out: Vec<Lane>,
    max: Lane,
    sum: Lane,
    /// `sum_j e^(s_j - max) (s_j - max)`, for the entropy.
    weighted: Lane,
}

/// What decides whether query t sees key j.
#[derive(Clone, Copy)]
struct Sight {
    seq_len: usize,
    /// Keys of the window, at most `reach`.
    window: usize,
    /// Keys of the model's own window.
    reach: usize,
    sinks: usize,
}

impl Sight {
    fn new(seq_len: usize, window: Window, reach: Window, sinks: usize) -> Self {
        Self {
            seq_len,
            window: window.min(reach).size(seq_len),
            reach: reach.size(seq_len),
            sinks,
        }
    }

    fn sees(self, t: usize, j: usize) -> bool {
        // Lanes beyond the text repeat the last query, so that they too have a key.
        let t = t.min(self.seq_len - 1);
        j <= t && (t - j < self.window || (j < self.sinks && t - j < self.reach))
    }
}

impl Strip {
    fn new(qkv: &Qkv, head: usize, start: usize, sight: Sight) -> Self {
        let AttentionShape {
            seq_len,
            n_heads,
            head_dim,
            scale,
            ..
        } = qkv.shape;
        let mut q = vec![[0.0; LANES]; head_dim];
        for (lane, t) in (start..seq_len).take(LANES).enumerate() {
            let row = &qkv.q[(t * n_heads + head) * head_dim..][..head_dim];
            for (d, &value) in row.iter().enumerate() {
                q[d][lane] = value * scale;
            }
        }
        let last = (start + LANES).min(seq_len) - 1;
        let low = (start + 1).saturating_sub(sight.window) / ROWS * ROWS;
        Self {
            start,
            low,
            high: (last + 1).next_multiple_of(ROWS),
            sink_low: (start + 1).saturating_sub(sight.reach) / ROWS * ROWS,
            sink_end: sight.sinks.next_multiple_of(ROWS).min(low),
            q,
            out: vec![[0.0; LANES]; head_dim.next_multiple_of(ROWS)],
            max: [f32::NEG_INFINITY; LANES],
            sum: [0.0; LANES],
            weighted: [0.0; LANES],
        }
    }

    /// The keys of `start..end` that this strip visits: of its window (segment 0), or of the sinks (1).
    #[inline(always)]
    fn range(&self, segment: usize, start: usize, end: usize) -> std::ops::Range<usize> {
        let (low, high) = [(self.low, self.high), (self.sink_low, self.sink_end)][segment];
        start.max(low)..end.min(high)
    }

    fn pairs(&self, seq_len: usize) -> u64 {
        let queries = LANES.min(seq_len - self.start) as u64;
        let sinks = self.sink_end.saturating_sub(self.sink_low);
        (self.high - self.low + sinks) as u64 * queries
    }
}

/// Scores of `keys` (a range of whole tiles) against a strip, `[keys]` lanes, hidden ones at minus infinity.
#[inline(always)]
fn scores<const FMA: bool>(
    keys: &[f32],
    range: std::ops::Range<usize>,
    strip: &Strip,
    sight: Sight,
    softcap: Option<f32>,
    out: &mut [Lane],
) {
    let head_dim = strip.q.len();
    for (index, tile_out) in out[..range.len()].chunks_exact_mut(ROWS).enumerate() {
        let j = range.start + index * ROWS;
        let mut acc = [[0.0; LANES]; ROWS];
        tile::<FMA>(
            &keys[j * head_dim..(j + ROWS) * head_dim],
            &strip.q,
            &mut acc,
        );
        if let Some(cap) = softcap {
            for lanes in &mut acc {
                for value in lanes.iter_mut() {
                    *value /= cap;
                }
                *lanes = tanh_lane::<FMA>(lanes);
                for value in lanes.iter_mut() {
                    *value *= cap;
                }
            }
        }
        tile_out.copy_from_slice(&acc);
    }
    let last = strip.start + LANES - 1;
    let inside = last < sight.seq_len;
    for (j, lanes) in range.zip(out) {
        let all_see = inside
            && j <= strip.start
            && (last - j < sight.window || (j < sight.sinks && last - j < sight.reach));
        if !all_see {
            for (lane, value) in lanes.iter_mut().enumerate() {
                if !sight.sees(strip.start + lane, j) {
                    *value = f32::NEG_INFINITY;
                }
            }
        }
    }
}

/// Takes `range` into the strip's running softmax and output.
#[inline(always)]
fn absorb<const FMA: bool>(
    keys: &[f32],
    values: &[f32],
    range: std::ops::Range<usize>,
    strip: &mut Strip,
    sight: Sight,
    softcap: Option<f32>,
    scratch: &mut [Lane; KEY_BLOCK],
) {
    if range.is_empty() {
        return;
    }
    let n = range.len();
    scores::<FMA>(keys, range.clone(), strip, sight, softcap, scratch);
    let scratch = &mut scratch[..n];

    let mut max = strip.max;
    for lanes in scratch.iter() {
        for lane in 0..LANES {
            max[lane] = max[lane].max(lanes[lane]);
        }
    }
    if max != strip.max {
        let mut shift = [0.0; LANES];
        for lane in 0..LANES {
            // At the first block the old maximum is minus infinity, and so is the shift: a factor of 0.
            shift[lane] = strip.max[lane] - max[lane];
        }
        let factor = exp_lane::<FMA>(shift);
        for lane in 0..LANES {
            // An empty sum stays empty: 0 * infinity would not.
            if strip.sum[lane] > 0.0 {
                strip.weighted[lane] =
                    factor[lane] * (strip.weighted[lane] + shift[lane] * strip.sum[lane]);
            }
            strip.sum[lane] *= factor[lane];
        }
        for lanes in &mut strip.out {
            for lane in 0..LANES {
                lanes[lane] *= factor[lane];
            }
        }
        strip.max = max;
    }
    let (mut sum, mut weighted) = (strip.sum, strip.weighted);
    for lanes in scratch.iter_mut() {
        let mut shifted = [0.0; LANES];
        for lane in 0..LANES {
            shifted[lane] = lanes[lane] - max[lane];
        }
        let weights = exp_lane::<FMA>(shifted);
        for lane in 0..LANES {
            sum[lane] += weights[lane];
            // max(): minus infinity times 0 is no number.
            weighted[lane] += weights[lane] * shifted[lane].max(-1e4);
        }
        *lanes = weights;
    }
    strip.sum = sum;
    strip.weighted = weighted;

    let rows = values.len() / strip.out.len();
    for (panel, out) in strip.out.as_chunks_mut::<ROWS>().0.iter_mut().enumerate() {
        let start = (panel * rows + range.start) * ROWS;
        tile::<FMA>(&values[start..start + n * ROWS], scratch, out);
    }
}

#[inline(always)]
fn run_item_body<const FMA: bool>(
    keys: &[f32],
    values: &[f32],
    strips: &mut [Strip],
    sight: Sight,
    softcap: Option<f32>,
) {
    let mut scratch = [[0.0; LANES]; KEY_BLOCK];
    let low = strips.iter().map(|s| s.low).min().unwrap_or(0);
    let high = strips.iter().map(|s| s.high).max().unwrap_or(0);
    let sink_end = strips.iter().map(|s| s.sink_end).max().unwrap_or(0);
    // From the nearest keys to the farthest, then the sinks, which are farther still. Plain loops: a closure would
    // be compiled without this processor's vector instructions.
    for (segment, low, high) in [(0, low, high), (1, 0, sink_end)] {
        let mut end = high;
        while end > low {
            let start = ((end - 1) / KEY_BLOCK * KEY_BLOCK).max(low);
            for strip in &mut *strips {
                let range = strip.range(segment, start, end);
                absorb::<FMA>(keys, values, range, strip, sight, softcap, &mut scratch);
            }
            end = start;
        }
    }
}

dispatch!(run_item, run_item_body, (
    keys: &[f32],
    values: &[f32],
    strips: &mut [Strip],
    sight: Sight,
    softcap: Option<f32>,
));

/// A pointer that work items may write through: each writes elements that no other touches.
struct Shared<T>(*mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Shared<T> {}

// SAFETY: see `Shared`; every use says which elements are its own.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// # Safety
    /// `index` lies within the allocation, and no other work item writes it.
    unsafe fn write(self, index: usize, value: T) {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(index).write(value) };
    }
}

/// Runs `work(item)` for items `0..count` on all cores, handed out in order as cores come free.
fn run_in_order(count: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    rayon::broadcast(|_| {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            work(index);
        }
    });
}

/// Runs `jobs` of a layer on all cores, writing their heads of `into`.
///
/// The result does not depend on the number of cores nor on which other heads are asked for.
pub fn attend(qkv: &Qkv, jobs: &[HeadJob], sinks: usize, into: &mut Attended) {
    let shape = qkv.shape;
    let AttentionShape {
        seq_len,
        n_heads,
        head_dim,
        softcap,
        ..
    } = shape;
    if seq_len == 0 || jobs.is_empty() {
        return;
    }
    let packed = Packed::new(qkv, jobs.iter().map(|job| job.head), true);
    let block = STRIPS * LANES;
    let blocks = seq_len.div_ceil(block);
    let sight_of = |job: &HeadJob| Sight::new(seq_len, job.window, job.reach, sinks);

    let mut items: Vec<(usize, usize)> = (0..jobs.len())
        .flat_map(|job| (0..blocks).map(move |b| (job, b)))
        .collect();
    // Longest first, so that no core is left with a long item at the end.
    items.sort_by_key(|&(job, b)| {
        let reach = jobs[job].window.min(jobs[job].reach).size(seq_len) + block;
        std::cmp::Reverse(reach.min((b + 1) * block))
    });

    let mut entropies = vec![0.0f32; jobs.len() * seq_len];
    let mut pairs = vec![0u64; items.len()];
    let out = Shared(into.out.as_mut_ptr());
    let lse = Shared(into.lse.as_mut_ptr());
    let entropy = Shared(entropies.as_mut_ptr());
    let executed = Shared(pairs.as_mut_ptr());
    run_in_order(items.len(), |index| {
        let (job_index, b) = items[index];
        let job = &jobs[job_index];
        let sight = sight_of(job);
        let kv = shape.kv_head(job.head);
        let mut strips: Vec<Strip> = (b * block..((b + 1) * block).min(seq_len))
            .step_by(LANES)
            .map(|start| Strip::new(qkv, job.head, start, sight))
            .collect();
        run_item(
            &packed.keys[kv],
            &packed.values[kv],
            &mut strips,
            sight,
            softcap,
        );
        let count = strips.iter().map(|s| s.pairs(seq_len)).sum();
        // SAFETY: one slot an item.
        unsafe { executed.write(index, count) };
        for strip in &strips {
            for lane in 0..LANES.min(seq_len - strip.start) {
                let t = strip.start + lane;
                let sum = strip.sum[lane];
                let log_sum = sum.ln();
                let at = (t * n_heads + job.head) * head_dim;
                for (d, lanes) in strip.out.iter().take(head_dim).enumerate() {
                    // SAFETY: only this item has query t of this head; heads of `jobs` are distinct.
                    unsafe { out.write(at + d, lanes[lane] / sum) };
                }
                // SAFETY: as above.
                unsafe {
                    lse.write(job.head * seq_len + t, strip.max[lane] + log_sum);
                    entropy.write(
                        job_index * seq_len + t,
                        log_sum - strip.weighted[lane] / sum,
                    );
                }
            }
        }
    });

    for job in jobs {
        into.executed_pairs[job.head] = 0;
    }
    for (&(job, _), count) in items.iter().zip(pairs) {
        into.executed_pairs[jobs[job].head] += count;
    }
    for (job, rows) in jobs.iter().zip(entropies.chunks(seq_len)) {
        let sum: f64 = rows.iter().map(|&e| f64::from(e)).sum();
        into.entropy[job.head] = (sum / seq_len as f64) as f32;
    }
}

/// One work item of a profile: a head and some of its queries.
#[inline(always)]
fn profile_item_body<const FMA: bool>(
    keys: &[f32],
    strips: &[Strip],
    lse: &[f32],
    key_limit: usize,
    sight: Sight,
    softcap: Option<f32>,
    masses: &mut [f32],
) {
    let mut scratch = [[0.0; LANES]; KEY_BLOCK];
    for strip in strips {
        // Lanes beyond the text weigh nothing.
        let mut row_lse = [f32::INFINITY; LANES];
        for (value, &known) in row_lse.iter_mut().zip(&lse[strip.start..]) {
            *value = known;
        }
        let limit = key_limit.next_multiple_of(ROWS);
        for (low, high) in [(strip.low, strip.high), (strip.sink_low, strip.sink_end)] {
            let mut start = low;
            while start < high.min(limit) {
                let end = (start + KEY_BLOCK).min(high).min(limit);
                scores::<FMA>(keys, start..end, strip, sight, softcap, &mut scratch);
                // Whole tiles were scored; the keys that count may end within one.
                for j in start..end.min(key_limit) {
                    let lanes = &scratch[j - start];
                    let mut shifted = [0.0; LANES];
                    for lane in 0..LANES {
                        // Rounding can lift a score a hair above its log-sum-exp.
                        shifted[lane] = (lanes[lane] - row_lse[lane]).min(0.0);
                    }
                    let weights = exp_lane::<FMA>(shifted);
                    // Lane l is query start + l, at distance start + l - j: the lanes of a key are neighbours
                    // here. LANES zeros in front take the lanes before the key, which weigh nothing.
                    let at = strip.start + LANES - j;
                    for (mass, weight) in masses[at..at + LANES].iter_mut().zip(weights) {
                        *mass += weight;
                    }
                }
                start = end;
            }
        }
    }
}

dispatch!(profile_item, profile_item_body, (
    keys: &[f32],
    strips: &[Strip],
    lse: &[f32],
    key_limit: usize,
    sight: Sight,
    softcap: Option<f32>,
    masses: &mut [f32],
));

/// Attention mass at every distance, `[H, T]`: `P_h(d) = (1/T) sum_t a[t, t - d]`, of the keys `j < key_limit`.
///
/// A second pass over the stored log-sum-exps; `windows` (`[H]`), `reach` and `sinks` are those of the run that left them.
/// With `key_limit >= T` this is the distance profile; with the number of sinks, the mass that sinks get.
pub fn distance_masses(
    qkv: &Qkv,
    windows: &[Window],
    reach: Window,
    sinks: usize,
    lse: &[f32],
    key_limit: usize,
) -> Vec<f32> {
    let shape = qkv.shape;
    let AttentionShape {
        seq_len,
        n_heads,
        softcap,
        ..
    } = shape;
    if seq_len == 0 {
        return Vec::new();
    }
    let packed = Packed::new(qkv, 0..n_heads, false);
    let chunks = seq_len.div_ceil(PROFILE_CHUNK);
    // Late chunks see the most keys: take them first.
    let item = |index: usize| (index % n_heads, chunks - 1 - index / n_heads);
    let mut partial: Vec<Vec<f32>> = vec![Vec::new(); n_heads * chunks];
    let slots = Shared(partial.as_mut_ptr());
    run_in_order(n_heads * chunks, |index| {
        let (head, chunk) = item(index);
        let sight = Sight::new(seq_len, windows[head], reach, sinks);
        let end = ((chunk + 1) * PROFILE_CHUNK).min(seq_len);
        let strips: Vec<Strip> = (chunk * PROFILE_CHUNK..end)
            .step_by(LANES)
            .map(|start| Strip::new(qkv, head, start, sight))
            .collect();
        let mut masses = vec![0.0f32; end.next_multiple_of(LANES) + LANES];
        profile_item(
            &packed.keys[shape.kv_head(head)],
            &strips,
            &lse[head * seq_len..(head + 1) * seq_len],
            key_limit.min(seq_len),
            sight,
            softcap,
            &mut masses,
        );
        // SAFETY: one slot an item; the empty vector it replaces owns no memory.
        unsafe { slots.write(head * chunks + chunk, masses) };
    });
    let mut profile = Vec::with_capacity(n_heads * seq_len);
    for parts in partial.chunks(chunks) {
        let mut sums = vec![0.0f64; seq_len];
        for part in parts {
            for (sum, &mass) in sums.iter_mut().zip(&part[LANES..]) {
                *sum += f64::from(mass);
            }
        }
        profile.extend(sums.iter().map(|sum| (sum / seq_len as f64) as f32));
    }
    profile
}

#[inline(always)]
fn weights_block_body<const FMA: bool>(
    keys: &[f32],
    range: std::ops::Range<usize>,
    strip: &Strip,
    lse: &[f32],
    sight: Sight,
    softcap: Option<f32>,
    out: &mut [Lane],
) {
    scores::<FMA>(keys, range.clone(), strip, sight, softcap, out);
    let mut row_lse = [f32::INFINITY; LANES];
    for (value, &known) in row_lse.iter_mut().zip(&lse[strip.start..]) {
        *value = known;
    }
    for lanes in &mut out[..range.len()] {
        let mut shifted = [0.0; LANES];
        for lane in 0..LANES {
            shifted[lane] = (lanes[lane] - row_lse[lane]).min(0.0);
        }
        *lanes = exp_lane::<FMA>(shifted);
    }
}

dispatch!(weights_block, weights_block_body, (
    keys: &[f32],
    range: std::ops::Range<usize>,
    strip: &Strip,
    lse: &[f32],
    sight: Sight,
    softcap: Option<f32>,
    out: &mut [Lane],
));

/// Calls `visit(group, query, key, weight)` for every visible pair of a part of one head's matrix, groups of
/// `group` queries in parallel; `state(group)` is made for each and what comes of it is returned in order.
pub(crate) fn visit_weights<S: Send>(
    part: &HeadPart<'_>,
    group: usize,
    state: impl Fn(usize) -> S + Sync,
    visit: impl Fn(&mut S, usize, usize, f32) + Sync,
) -> Vec<S> {
    use rayon::prelude::*;
    let shape = part.qkv.shape;
    let seq_len = shape.seq_len;
    let packed = Packed::new(part.qkv, std::iter::once(part.head), false);
    let keys = &packed.keys[shape.kv_head(part.head)];
    let lse = &part.lse[part.head * seq_len..(part.head + 1) * seq_len];
    let sight = Sight::new(seq_len, part.window, part.reach, part.sinks);
    let groups = part.queries.len().div_ceil(group);
    (0..groups)
        .into_par_iter()
        .map(|index| {
            let mut state = state(index);
            let first = part.queries.start + index * group;
            let last = (first + group).min(part.queries.end);
            let mut scratch = [[0.0; LANES]; KEY_BLOCK];
            for start in (first..last).step_by(LANES) {
                let strip = Strip::new(part.qkv, part.head, start, sight);
                let lanes_used = LANES.min(last - start);
                let wanted = part.keys.start / ROWS * ROWS..part.keys.end.next_multiple_of(ROWS);
                for segment in 0..2 {
                    let range = strip.range(segment, wanted.start, wanted.end);
                    let mut low = range.start;
                    while low < range.end {
                        let high = (low + KEY_BLOCK).min(range.end);
                        weights_block(
                            keys,
                            low..high,
                            &strip,
                            lse,
                            sight,
                            shape.softcap,
                            &mut scratch,
                        );
                        for (j, lanes) in (low..high).zip(&scratch) {
                            if !part.keys.contains(&j) {
                                continue;
                            }
                            for (lane, &weight) in lanes[..lanes_used].iter().enumerate() {
                                visit(&mut state, start + lane, j, weight);
                            }
                        }
                        low = high;
                    }
                }
            }
            state
        })
        .collect()
}

/// A part of one head's attention matrix.
pub(crate) struct HeadPart<'a> {
    /// Queries, keys and values of its layer.
    pub qkv: &'a Qkv,
    /// Log-sum-exps of its layer, `[H, T]`.
    pub lse: &'a [f32],
    /// The head.
    pub head: usize,
    /// The window under which `lse` was measured.
    pub window: Window,
    /// The model's own window.
    pub reach: Window,
    /// The sinks under which `lse` was measured.
    pub sinks: usize,
    /// Rows.
    pub queries: std::ops::Range<usize>,
    /// Columns.
    pub keys: std::ops::Range<usize>,
}
