// Windowed causal attention with sinks: one workgroup runs one work item, a head and BLOCK_Q queries.
//
// Each invocation holds one query and its running softmax. Keys and values come in tiles of BLOCK_K through
// workgroup memory, from the nearest to the farthest; tiles outside the item's window are never visited.
// The host (src/engine/gpu/attention.rs) writes HEAD_DIM, BLOCK_Q and BLOCK_K in, and repeats every line that starts
// with `//each` for each group of four head dimensions, `{i}` its number: vectors of a query then live in registers,
// and a driver that bounds the iterations of a shader's loops (llvmpipe: 65,535) has few to count.

struct Params {
    seq_len: u32,
    n_heads: u32,
    n_kv_heads: u32,
    sinks: u32,
    scale: f32,
    // 0: no cap.
    softcap: f32,
    first_item: u32,
    padding: u32,
}

struct Item {
    head: u32,
    kv_head: u32,
    first_query: u32,
    // At most reach.
    window: u32,
    // Keys of the model's own window: it bounds the sinks too.
    reach: u32,
    padding: array<u32, 3>,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> items: array<Item>;
// q: [T, H, D]; k, v: [T, Hkv, D].
@group(0) @binding(2) var<storage, read> q: array<f32>;
@group(0) @binding(3) var<storage, read> k: array<f32>;
@group(0) @binding(4) var<storage, read> v: array<f32>;
// [T, H, D].
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
// [H, T] pairs: log-sum-exp, entropy.
@group(0) @binding(6) var<storage, read_write> rows: array<vec2<f32>>;
// [H]: pairs evaluated, padding included.
@group(0) @binding(7) var<storage, read_write> executed: array<atomic<u32>>;

const HEAD_DIM: u32 = HEAD_DIM_VALUE;
const BLOCK_Q: u32 = BLOCK_Q_VALUE;
const BLOCK_K: u32 = BLOCK_K_VALUE;
// Groups of four dimensions, the last one padded with zeros.
const GROUPS: u32 = (HEAD_DIM + 3u) / 4u;
const HIDDEN: f32 = -3.0e38;

var<workgroup> key_tile: array<vec4<f32>, BLOCK_K * GROUPS>;
var<workgroup> value_tile: array<vec4<f32>, BLOCK_K * GROUPS>;

// 1 where dimension 4 * group + c exists.
fn exists(group: u32) -> vec4<f32> {
    return select(vec4(0.0), vec4(1.0), vec4(group * 4u) + vec4(0u, 1u, 2u, 3u) < vec4(HEAD_DIM));
}

// Four neighbours from `at` on; beyond the head's end they repeat its last one, and `exists` is 0.
fn four(at: u32, group: u32) -> vec4<u32> {
    return at + min(vec4(group * 4u) + vec4(0u, 1u, 2u, 3u), vec4(HEAD_DIM - 1u));
}

@compute @workgroup_size(BLOCK_Q)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let item = items[params.first_item + workgroup.x];
    let seq_len = params.seq_len;
    let t = item.first_query + local;
    let is_query = t < seq_len;
    let q_at = (min(t, seq_len - 1u) * params.n_heads + item.head) * HEAD_DIM;

    //each var i{i} = four(q_at, {i}u); let q{i} = params.scale * exists({i}u) * vec4(q[i{i}.x], q[i{i}.y], q[i{i}.z], q[i{i}.w]); var acc{i} = vec4(0.0);
    var row_max = HIDDEN;
    var row_sum = 0.0;
    // sum e^(s - max) (s - max), for the entropy.
    var weighted = 0.0;

    // The item's keys: [low, high) of its window, then [sink_low, sink_end). All but high are multiples of BLOCK_K.
    let high = min(item.first_query + BLOCK_Q, seq_len);
    var low = 0u;
    if (item.first_query + 1u > item.window) {
        low = (item.first_query + 1u - item.window) / BLOCK_K * BLOCK_K;
    }
    let sink_end = min((params.sinks + BLOCK_K - 1u) / BLOCK_K * BLOCK_K, low);
    var sink_low = 0u;
    if (item.first_query + 1u > item.reach) {
        sink_low = min((item.first_query + 1u - item.reach) / BLOCK_K * BLOCK_K, sink_end);
    }
    let window_tiles = (high - low + BLOCK_K - 1u) / BLOCK_K;
    let tiles = window_tiles + (sink_end - sink_low) / BLOCK_K;
    var visited = 0u;

    for (var i = 0u; i < tiles; i++) {
        visited++;
        var start = sink_low + (i - window_tiles) * BLOCK_K;
        if (i < window_tiles) {
            start = low + (window_tiles - 1u - i) * BLOCK_K;
        }
        workgroupBarrier();
        for (var e = local; e < BLOCK_K * GROUPS; e += BLOCK_Q) {
            let j = min(start + e / GROUPS, seq_len - 1u);
            let group = e % GROUPS;
            let at = four((j * params.n_kv_heads + item.kv_head) * HEAD_DIM, group);
            key_tile[e] = exists(group) * vec4(k[at.x], k[at.y], k[at.z], k[at.w]);
            value_tile[e] = exists(group) * vec4(v[at.x], v[at.y], v[at.z], v[at.w]);
        }
        workgroupBarrier();

        var scores: array<f32, BLOCK_K>;
        var tile_max = row_max;
        for (var c = 0u; c < BLOCK_K; c++) {
            let j = start + c;
            let at = c * GROUPS;
            var score = 0.0;
            //each score += dot(q{i}, key_tile[at + {i}u]);
            if (params.softcap > 0.0) {
                score = params.softcap * tanh(score / params.softcap);
            }
            let is_visible = is_query && j <= t
                && (t - j < item.window || (j < params.sinks && t - j < item.reach));
            scores[c] = select(HIDDEN, score, is_visible);
            tile_max = max(tile_max, scores[c]);
        }
        if (tile_max > row_max) {
            // The first tile of a query finds an empty sum, and has nothing to rescale.
            if (row_sum > 0.0) {
                let shift = row_max - tile_max;
                let factor = exp(shift);
                weighted = factor * (weighted + shift * row_sum);
                row_sum *= factor;
                //each acc{i} *= factor;
            }
            row_max = tile_max;
        }
        for (var c = 0u; c < BLOCK_K; c++) {
            if (scores[c] > HIDDEN) {
                let at = c * GROUPS;
                let shifted = scores[c] - row_max;
                let weight = exp(shifted);
                row_sum += weight;
                weighted += weight * shifted;
                //each acc{i} += weight * value_tile[at + {i}u];
            }
        }
    }

    if (is_query) {
        let scale = 1.0 / row_sum;
        //each i{i} = four(q_at, {i}u); put(i{i}, acc{i} * scale, {i}u);
        let log_sum = log(row_sum);
        rows[item.head * seq_len + t] = vec2<f32>(row_max + log_sum, log_sum - weighted * scale);
    }
    if (local == 0u) {
        let queries = min(BLOCK_Q, seq_len - item.first_query);
        atomicAdd(&executed[item.head], visited * BLOCK_K * queries);
    }
}

fn put(at: vec4<u32>, value: vec4<f32>, group: u32) {
    out[at.x] = value.x;
    if (group * 4u + 1u < HEAD_DIM) {
        out[at.y] = value.y;
    }
    if (group * 4u + 2u < HEAD_DIM) {
        out[at.z] = value.z;
    }
    if (group * 4u + 3u < HEAD_DIM) {
        out[at.w] = value.w;
    }
}
