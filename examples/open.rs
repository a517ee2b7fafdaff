//! Opens a model and says how long that took and how much memory it took: `cargo run --release --example open MODEL`.

use std::{path::Path, time::Instant};

use headscope::model::Model;

fn main() -> headscope::Result<()> {
    let Some(path) = std::env::args().nth(1) else {
        println!("usage: open MODEL");
        return Ok(());
    };
    let started = Instant::now();
    let model = Model::open(Path::new(&path))?;
    println!(
        "{}: {:.1} M parameters in {:.2} s",
        model.name,
        model.parameters() as f64 / 1e6,
        started.elapsed().as_secs_f64()
    );
    // Linux says what a process took at most, and how much of it is a mapped file.
    if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
        for line in status.lines() {
            if ["VmHWM", "VmRSS", "RssAnon", "RssFile"]
                .iter()
                .any(|k| line.starts_with(k))
            {
                println!("{line}");
            }
        }
    }
    Ok(())
}
