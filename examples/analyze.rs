//! Which heads of the built-in model look far, and what a window of 64 costs.

use std::sync::Arc;

use headscope::{
    Result,
    attention::{Window, WindowMap},
    engine::{Backend, Decoder, Flow, distance_profile},
    model::{Bos, SAMPLES, built_in},
};

fn main() -> Result<()> {
    let model = built_in()?;
    let spec = model.spec.clone();
    let text = model
        .tokenizer
        .encode(SAMPLES[0].text, spec.vocab_size, Bos::Auto)?;
    let decoder = Decoder::new(model, Arc::new(text.ids))?;
    let mut kernel = Backend::Cpu.kernel();
    let go = &mut |_, _| Flow::Continue;

    let (full, trace) = decoder.run(kernel.as_mut(), &decoder.full_map(), &[], go)?;
    let profile = distance_profile(&trace, go)?;
    let mut reach: Vec<_> = full
        .windows
        .iter()
        .map(|(head, _)| (profile.coverage(head, Window::Last(64)), head))
        .collect();
    reach.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (coverage, head) in reach.iter().take(5) {
        println!(
            "{head}: only {:.0} % of its attention within 64 keys",
            coverage * 100.0
        );
    }

    let map = WindowMap::uniform(spec.n_layers, spec.n_heads, Window::Last(64)).with_sinks(4);
    let (windowed, _) = decoder.run(kernel.as_mut(), &map, &[&trace], go)?;
    println!(
        "loss {:?} full, {:?} with windows of 64",
        full.mean_loss(),
        windowed.mean_loss()
    );
    Ok(())
}
