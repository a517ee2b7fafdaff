// Discs and links of a hierarchy, one instance each, with soft edges of one pixel.

struct Params {
    // Size of the viewport in points.
    size: vec2<f32>,
    // Pixels a point.
    scale: f32,
    // 1: the target holds linear colours.
    is_linear: u32,
}

struct Instance {
    // A disc has both ends in one place. In points, from the viewport's corner.
    @location(0) from_to: vec4<f32>,
    // Half the width of a link, the radius of a disc; and the width of its outline.
    @location(1) radius: vec2<f32>,
    @location(2) fill: vec4<f32>,
    @location(3) outline: vec4<f32>,
}

struct Vertex {
    @builtin(position) position: vec4<f32>,
    @location(0) at: vec2<f32>,
    @location(1) @interpolate(flat) from_to: vec4<f32>,
    @location(2) @interpolate(flat) radius: vec2<f32>,
    @location(3) @interpolate(flat) fill: vec4<f32>,
    @location(4) @interpolate(flat) outline: vec4<f32>,
}

@group(0) @binding(0) var<uniform> params: Params;

@vertex
fn vertex(@builtin(vertex_index) index: u32, instance: Instance) -> Vertex {
    // Two triangles around the capsule, with room for the soft edge.
    let corner = vec2<f32>(f32(index & 1u), f32((index >> 1u) & 1u));
    let reach = instance.radius.x + instance.radius.y + 1.5;
    let low = min(instance.from_to.xy, instance.from_to.zw) - reach;
    let high = max(instance.from_to.xy, instance.from_to.zw) + reach;
    let at = mix(low, high, corner);
    var out: Vertex;
    let ndc = at / params.size * 2.0 - 1.0;
    out.position = vec4<f32>(ndc.x, -ndc.y, 0.0, 1.0);
    out.at = at;
    out.from_to = instance.from_to;
    out.radius = instance.radius;
    out.fill = instance.fill;
    out.outline = instance.outline;
    return out;
}

fn linear_from_gamma(c: vec3<f32>) -> vec3<f32> {
    let low = c / 12.92;
    let high = pow((c + 0.055) / 1.055, vec3(2.4));
    return select(high, low, c <= vec3(0.04045));
}

@fragment
fn fragment(in: Vertex) -> @location(0) vec4<f32> {
    let along = in.from_to.zw - in.from_to.xy;
    let length_squared = max(dot(along, along), 1e-6);
    let part = clamp(dot(in.at - in.from_to.xy, along) / length_squared, 0.0, 1.0);
    let distance = length(in.at - in.from_to.xy - along * part);
    let edge = 0.5 / params.scale;
    let inner = 1.0 - smoothstep(-edge, edge, distance - in.radius.x);
    let outer = 1.0 - smoothstep(-edge, edge, distance - in.radius.x - in.radius.y);
    let color = mix(in.outline, in.fill, inner);
    var rgb = color.rgb;
    if (params.is_linear == 1u) {
        rgb = linear_from_gamma(rgb);
    }
    let alpha = color.a * outer;
    // Premultiplied, as egui's own pass blends.
    return vec4(rgb * alpha, alpha);
}
