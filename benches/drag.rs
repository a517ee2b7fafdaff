//! The built-in model at 1,024 tokens: a full run, and what one head's new window costs by the layer it lies in.
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use headscope::{
    attention::{HeadId, Window},
    engine::{Backend, Decoder, Flow, distance_profile},
    model::built_in,
    session::sample,
};

fn drag(c: &mut Criterion) {
    let model = built_in().unwrap();
    let text = sample("long").unwrap().text;
    let tokens = model
        .tokenizer
        .encode(text, model.spec.vocab_size, headscope::model::Bos::Auto)
        .unwrap();
    let decoder = Decoder::new(model, Arc::new(tokens.ids[..1024].to_vec())).unwrap();
    let mut kernel = Backend::Cpu.kernel();
    let go = &mut |_, _| Flow::Continue;
    let full = decoder.full_map();
    let mut group = c.benchmark_group("built-in model, 1,024 tokens");
    group.sample_size(20);
    group.bench_function("full run", |b| {
        b.iter(|| decoder.run(kernel.as_mut(), &full, &[], go).unwrap());
    });
    let (_, baseline) = decoder.run(kernel.as_mut(), &full, &[], go).unwrap();
    group.bench_function("distance profiles", |b| {
        b.iter(|| distance_profile(&baseline, go).unwrap());
    });
    for (name, layer) in [("first", 0), ("middle", 3), ("last", 5)] {
        let mut map = full.clone();
        map.set(HeadId { layer, head: 2 }, Window::Last(128));
        group.bench_function(format!("a head of the {name} layer"), |b| {
            b.iter(|| {
                decoder
                    .run(kernel.as_mut(), &map, &[&baseline], go)
                    .unwrap()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, drag);
criterion_main!(benches);
