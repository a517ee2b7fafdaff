//! The numbers of the whole map ([`Summary`]), and of everything, for `headscope analyze` ([`Analysis`]).

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Mean, Session, TextNumbers, Totals};
use crate::{
    attention::{
        HeadId, Window,
        coverage::map_coverage,
        pairs::{FlopsShape, acr, flops_ratio, map_acr, map_causal_acr},
    },
    engine::Backend,
};

/// What the top bar shows: `None` while it is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Mean loss with full attention, nats per token.
    pub loss_full: Option<f64>,
    /// Mean loss under the latest windows that ran.
    pub loss_windowed: Option<f64>,
    /// Whether that run is of the current windows.
    pub is_current: bool,
    /// While that run is of other windows: what the current ones may lose, by the slope of loss against coverage
    /// between full attention and that run. `None` where there is no slope yet.
    pub loss_estimate: Option<f64>,
    /// Attention coverage ratio.
    pub acr: f64,
    /// Pairs in the windows over causal pairs.
    pub causal_acr: f64,
    /// Pairs evaluated over causal pairs, of the latest run.
    pub ear: Option<f64>,
    /// Analytic FLOPs over those of full attention.
    pub flops_ratio: f64,
    /// Mean share of full attention's mass that the windows keep.
    pub mass_coverage: Option<f64>,
}

impl Summary {
    pub(super) fn of(session: &Session) -> Self {
        let seq_len = session.seq_len();
        let spec = &session.model.spec;
        let map = &session.windows;
        Self {
            loss_full: session.baseline.as_ref().and_then(|b| b.run.mean_loss()),
            loss_windowed: session.windowed.as_ref().and_then(|w| w.run.mean_loss()),
            is_current: session.is_current(),
            loss_estimate: loss_estimate(session),
            acr: map_acr(map, seq_len),
            causal_acr: map_causal_acr(map, seq_len),
            ear: session.windowed.as_ref().map(|w| w.run.ear),
            flops_ratio: flops_ratio(
                map,
                FlopsShape {
                    seq_len,
                    n_heads: spec.n_heads,
                    head_dim: spec.head_dim,
                    hidden: spec.hidden,
                    ffn_hidden: spec.ffn_hidden,
                },
            ),
            mass_coverage: session
                .baseline
                .as_ref()
                .map(|b| map_coverage(&b.profile, session.current_sinks(), map)),
        }
    }
}

/// What the current windows may lose, before they have run.
///
/// A straight line through full attention, which keeps everything, and the latest run: crude, but there at once.
fn loss_estimate(session: &Session) -> Option<f64> {
    let (baseline, windowed) = (session.baseline.as_ref()?, session.windowed.as_ref()?);
    let ran = &windowed.run.windows;
    if *ran == session.windows || ran.sinks != session.windows.sinks {
        return None;
    }
    let sinks = session.current_sinks();
    let lost = |map| 1.0 - map_coverage(&baseline.profile, sinks, map);
    let (before, now) = (lost(ran), lost(&session.windows));
    let full = baseline.run.mean_loss()?;
    // Too little was lost to tell a slope from it.
    (before > 1e-3).then_some(full + (windowed.run.mean_loss()? - full) * now / before)
}

/// The loss, full and windowed.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Loss {
    /// Nats per token with full attention.
    pub full: Option<f64>,
    /// Nats per token under the windows.
    pub windowed: Option<f64>,
    /// Windowed minus full.
    pub delta: Option<f64>,
    /// `e^full`.
    pub perplexity_full: Option<f64>,
    /// `e^windowed`.
    pub perplexity_windowed: Option<f64>,
    /// Sum of losses in bits over bytes of the text.
    pub bits_per_byte_full: Option<f64>,
    /// As above, windowed.
    pub bits_per_byte_windowed: Option<f64>,
}

impl Loss {
    /// Over all passages.
    fn of(totals: &Totals) -> Self {
        let bytes: usize = totals.texts.iter().map(|t| t.bytes).sum();
        // The first token of each passage is not predicted.
        let predicted: usize = totals.texts.iter().map(|t| t.tokens - t.blocks).sum();
        let bits = |loss: Option<f64>| {
            let loss = loss.filter(|_| bytes > 0)?;
            Some(loss * predicted as f64 / std::f64::consts::LN_2 / bytes as f64)
        };
        let (full, windowed) = (totals.loss_full, totals.loss_windowed);
        Self {
            full,
            windowed,
            delta: windowed.zip(full).map(|(w, f)| w - f),
            perplexity_full: full.map(f64::exp),
            perplexity_windowed: windowed.map(f64::exp),
            bits_per_byte_full: bits(full),
            bits_per_byte_windowed: bits(windowed),
        }
    }
}

/// Everything about one run, as `headscope analyze --format json` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct Analysis {
    model: ModelPart,
    text: TextPart,
    engine: EnginePart,
    windows: WindowsPart,
    /// The loss.
    pub loss: Loss,
    acr: f64,
    causal_acr: f64,
    ear: Option<f64>,
    flops_ratio: f64,
    mass_coverage: Option<f64>,
    /// Means over texts, or over the blocks of one, and their standard deviations.
    #[serde(skip_serializing_if = "Option::is_none")]
    spread: Option<SpreadPart>,
    /// Each text.
    texts: Vec<TextNumbers>,
    /// Between chance (0) and the best assignment of the same windows (1).
    routing_quality: Option<f64>,
    /// Heads at each window size.
    histogram: Vec<Bin>,
    layers: Vec<LayerPart>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_loss: Option<TokenLoss>,
    timings_ms: BTreeMap<&'static str, f64>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Bin {
    window: u32,
    heads: usize,
}

#[derive(Clone, Debug, Serialize)]
struct ModelPart {
    name: String,
    architecture: String,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    parameters: u64,
    context: usize,
}

#[derive(Clone, Debug, Serialize)]
struct TextPart {
    name: String,
    tokens: usize,
    bytes: usize,
    passages: usize,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct SpreadPart {
    over: &'static str,
    loss_full: Option<Mean>,
    delta: Option<Mean>,
    mass_coverage: Option<Mean>,
}

#[derive(Clone, Debug, Serialize)]
struct EnginePart {
    kind: &'static str,
    adapter: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
struct WindowsPart {
    regime: Option<String>,
    sinks: usize,
    map: Vec<Vec<Window>>,
}

#[derive(Clone, Debug, Serialize)]
struct LayerPart {
    acr: f64,
    groups_per_level: Option<Vec<usize>>,
    heads: Vec<HeadPart>,
}

#[derive(Clone, Debug, Serialize)]
struct HeadPart {
    window: Window,
    group: Option<usize>,
    coverage: Option<f32>,
    entropy: Option<f32>,
    norm: Option<f32>,
}

#[derive(Clone, Debug, Serialize)]
struct TokenLoss {
    full: Vec<f32>,
    windowed: Vec<f32>,
}

impl Analysis {
    /// Of a session whose runs are done. Entropy and norm are those of the windowed run.
    pub fn of(session: &Session, backend: &Backend, with_tokens: bool) -> Self {
        let spec = &session.model.spec;
        let summary = session.summary();
        let totals = session.totals();
        let windowed = session.windowed.as_ref().map(|w| &w.run);
        let full = session.baseline.as_ref().map(|b| &b.run);
        let map = &session.windows;
        let layers = (0..map.layers())
            .map(|layer| LayerPart {
                acr: acr(map.layer(layer), session.seq_len()),
                groups_per_level: session
                    .regime
                    .as_ref()
                    .and_then(|r| r.controller.layers.get(layer)?.hierarchy.as_ref())
                    .map(|h| h.counts()),
                heads: (0..map.heads())
                    .map(|head| {
                        let id = HeadId { layer, head };
                        HeadPart {
                            window: map.get(id),
                            group: session.group(id),
                            coverage: session.coverage(id),
                            entropy: windowed.map(|run| run.entropy_of(id)),
                            norm: windowed.map(|run| run.norm_of(id)),
                        }
                    })
                    .collect(),
            })
            .collect();
        let ms = |run: Option<&crate::engine::Run>| run.map(|r| r.elapsed.as_secs_f64() * 1e3);
        let timings = [("full", ms(full)), ("windowed", ms(windowed))];
        Self {
            model: ModelPart {
                name: session.model.name.clone(),
                architecture: spec.architecture.clone(),
                layers: spec.n_layers,
                heads: spec.n_heads,
                kv_heads: spec.n_kv_heads,
                head_dim: spec.head_dim,
                parameters: session.model.parameters(),
                context: spec.context,
            },
            text: TextPart {
                name: session.title(),
                tokens: totals.texts.iter().map(|t| t.tokens).sum(),
                bytes: totals.texts.iter().map(|t| t.bytes).sum(),
                passages: session.passages.len(),
            },
            engine: EnginePart {
                kind: match backend {
                    Backend::Cpu => "cpu",
                    Backend::Gpu(_) => "gpu",
                },
                adapter: match backend {
                    Backend::Cpu => None,
                    Backend::Gpu(gpu) => Some(crate::engine::gpu::describe(&gpu.info)),
                },
            },
            windows: WindowsPart {
                regime: session.regime.as_ref().map(|r| r.regime.name().to_owned()),
                sinks: map.sinks,
                map: (0..map.layers()).map(|l| map.layer(l).to_vec()).collect(),
            },
            loss: Loss::of(&totals),
            acr: summary.acr,
            causal_acr: summary.causal_acr,
            ear: summary.ear,
            flops_ratio: summary.flops_ratio,
            mass_coverage: totals.mass_coverage,
            spread: (session.passages.len() > 1).then_some(SpreadPart {
                over: match session.sources.len() {
                    1 => "blocks",
                    _ => "texts",
                },
                loss_full: totals.spread_full,
                delta: totals.spread_delta,
                mass_coverage: totals.spread_coverage,
            }),
            texts: totals.texts,
            routing_quality: session.routing_quality(),
            histogram: session
                .histogram()
                .into_iter()
                .map(|(window, heads)| Bin { window, heads })
                .collect(),
            layers,
            token_loss: with_tokens.then(|| TokenLoss {
                full: full.map_or_else(Vec::new, |r| r.token_loss.clone()),
                windowed: windowed.map_or_else(Vec::new, |r| r.token_loss.clone()),
            }),
            timings_ms: timings
                .into_iter()
                .filter_map(|(k, v)| Some((k, v?)))
                .collect(),
        }
    }

    /// For a person, a dozen lines.
    pub fn to_text(&self) -> String {
        let number = |value: Option<f64>, digits: usize| {
            value.map_or_else(|| "-".to_owned(), |v| format!("{v:.digits$}"))
        };
        let m = &self.model;
        let mut out = format!(
            "model      {} ({}): {} layers of {} heads of {}, {:.2} M parameters\n",
            m.name,
            m.architecture,
            m.layers,
            m.heads,
            m.head_dim,
            m.parameters as f64 / 1e6
        );
        out += &format!(
            "text       {}: {} tokens, {} bytes\n",
            self.text.name, self.text.tokens, self.text.bytes
        );
        if let Some(spread) = &self.spread {
            for text in &self.texts {
                out += &format!(
                    "           {}: {} tokens in {}, loss {} -> {}, coverage {}\n",
                    text.name,
                    text.tokens,
                    text.blocks,
                    number(text.loss_full, 4),
                    number(text.loss_windowed, 4),
                    number(text.mass_coverage, 4)
                );
            }
            let mean = |mean: Option<Mean>| match mean {
                Some(Mean {
                    mean,
                    spread: Some(spread),
                }) => format!("{mean:.4} ± {spread:.4}"),
                other => number(other.map(|m| m.mean), 4),
            };
            out += &format!(
                "over {:6} full {}  difference {}  coverage {}\n",
                spread.over,
                mean(spread.loss_full),
                mean(spread.delta),
                mean(spread.mass_coverage)
            );
        }
        let adapter = self
            .engine
            .adapter
            .as_ref()
            .map_or_else(String::new, |a| format!(", {a}"));
        out += &format!("engine     {}{adapter}\n", self.engine.kind);
        out += &format!(
            "loss       full {}  windowed {}  difference {} (nats a token)\n",
            number(self.loss.full, 4),
            number(self.loss.windowed, 4),
            self.loss
                .delta
                .map_or_else(|| "-".to_owned(), |d| format!("{d:+.4}")),
        );
        out += &format!(
            "perplexity full {}  windowed {}\n",
            number(self.loss.perplexity_full, 2),
            number(self.loss.perplexity_windowed, 2)
        );
        out += &format!(
            "windows    ACR {:.4}  causal ACR {:.4}  EAR {}  FLOPs ratio {:.4}  sinks {}\n",
            self.acr,
            self.causal_acr,
            number(self.ear, 4),
            self.flops_ratio,
            self.windows.sinks
        );
        out += &format!(
            "coverage   {} of full attention's mass\n",
            number(self.mass_coverage, 4)
        );
        if let Some(regime) = &self.windows.regime {
            out += &format!(
                "regime     {regime}  routing quality {}\n",
                number(self.routing_quality, 3)
            );
        }
        let bins: Vec<String> = self
            .histogram
            .iter()
            .map(|b| format!("{}: {}", b.window, b.heads))
            .collect();
        out += &format!("heads at   {}\n", bins.join("  "));
        for (name, ms) in &self.timings_ms {
            out += &format!("time       {name} {ms:.0} ms\n");
        }
        out
    }

    /// One row a head.
    pub fn to_csv(&self) -> String {
        let mut out = String::from("layer,head,window,coverage,entropy,norm\n");
        let number = |v: Option<f32>| v.map_or_else(String::new, |v| v.to_string());
        for (layer, part) in self.layers.iter().enumerate() {
            for (head, h) in part.heads.iter().enumerate() {
                out += &format!(
                    "{layer},{head},{},{},{},{}\n",
                    h.window,
                    number(h.coverage),
                    number(h.entropy),
                    number(h.norm)
                );
            }
        }
        out
    }
}
