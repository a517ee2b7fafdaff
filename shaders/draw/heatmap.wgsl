// A part of one head's attention matrix: weights through a scale and a colour map, with the window's band over it.
// Queries run downwards, keys to the right. `heatmap_color` in src/render/heatmap.rs is this shader's CPU twin.

struct Params {
    // What the rectangle shows, in tokens: first key, first query, keys, queries.
    view: vec4<f32>,
    // Where the image lies, in tokens: first key, first query, keys and queries of a pixel.
    image: vec4<f32>,
    // Drawn where there is nothing: sRGB 0..1.
    empty: vec4<f32>,
    // Laid over what the window hides: sRGB and opacity.
    veil: vec4<f32>,
    seq_len: f32,
    // Keys of the window.
    window: f32,
    sinks: f32,
    // Largest weight of the image.
    max: f32,
    // Powers of ten from black to the top; 0 for a linear scale.
    decades: f32,
    // Bits: 1 by row, 2 without the first key, 4 the target holds linear colours, 8 there is an image.
    flags: u32,
    padding: vec2<u32>,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var weights: texture_2d<f32>;
// One texel a row: its largest weight, with and without the first key.
@group(0) @binding(2) var row_max: texture_2d<f32>;
@group(0) @binding(3) var colors: texture_2d<f32>;

struct Vertex {
    @builtin(position) position: vec4<f32>,
    @location(0) uv: vec2<f32>,
}

@vertex
fn vertex(@builtin(vertex_index) index: u32) -> Vertex {
    // One triangle that covers the viewport.
    let uv = vec2<f32>(f32((index << 1u) & 2u), f32(index & 2u));
    var out: Vertex;
    out.position = vec4<f32>(uv.x * 2.0 - 1.0, 1.0 - uv.y * 2.0, 0.0, 1.0);
    out.uv = uv;
    return out;
}

fn linear_from_gamma(c: vec3<f32>) -> vec3<f32> {
    let low = c / 12.92;
    let high = pow((c + 0.055) / 1.055, vec3(2.4));
    return select(high, low, c <= vec3(0.04045));
}

fn scaled(weight: f32, top: f32) -> f32 {
    if (weight <= 0.0 || top <= 0.0) {
        return 0.0;
    }
    let share = weight / top;
    if (params.decades > 0.0) {
        return clamp(1.0 + log(share) / (2.302585093 * params.decades), 0.0, 1.0);
    }
    return clamp(share, 0.0, 1.0);
}

fn color_at(uv: vec2<f32>) -> vec3<f32> {
    let at = params.view.xy + uv * params.view.zw;
    let key = floor(at.x);
    let query = floor(at.y);
    if (key < 0.0 || query < 0.0 || query >= params.seq_len || key > query) {
        return params.empty.rgb;
    }
    let without_first = (params.flags & 2u) != 0u;
    var color = params.empty.rgb;
    let cell = (vec2(key, query) - params.image.xy) / params.image.zw;
    let size = vec2<f32>(textureDimensions(weights));
    if ((params.flags & 8u) != 0u && all(cell >= vec2(0.0)) && all(cell < size)) {
        let texel = vec2<i32>(cell);
        var top = params.max;
        if ((params.flags & 1u) != 0u) {
            let rows = textureLoad(row_max, vec2(0, texel.y), 0);
            top = select(rows.x, rows.y, without_first);
        }
        let weight = textureLoad(weights, texel, 0).x;
        let t = scaled(weight, top);
        color = textureLoad(colors, vec2(i32(t * 255.0 + 0.5), 0), 0).rgb;
        if (without_first && key < params.image.z) {
            color = mix(params.empty.rgb, vec3(0.5), 0.35);
        }
    }
    if (query - key >= params.window && key >= params.sinks) {
        color = mix(color, params.veil.rgb, params.veil.a);
    }
    return color;
}

@fragment
fn fragment(in: Vertex) -> @location(0) vec4<f32> {
    let color = color_at(in.uv);
    if ((params.flags & 4u) != 0u) {
        return vec4(linear_from_gamma(color), 1.0);
    }
    return vec4(color, 1.0);
}
