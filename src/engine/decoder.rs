//! [`Decoder`]: the forward pass, driven by the spec, and continued from the first layer that changed.

use std::{borrow::Cow, sync::Arc, time::Instant};

use candle_core::{Device, Tensor};

use super::{
    attend::{Attended, AttentionKernel, AttentionShape, HeadJob, Qkv},
    cpu::{
        elementwise::{RopeTable, activate, add_assign, add_bias, gate_mul, norm, scale},
        product::{Mode, product},
    },
    loss::{LogitHead, token_loss},
    run::{LayerTrace, Run, Trace, head_moments, head_statistics},
};
use crate::{
    Error, Result,
    aah::Controller,
    attention::{HeadId, Window, WindowMap},
    model::{BlockWeights, Linear, Model, Norm, Positions},
};

/// Whether a pass goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Go on.
    Continue,
    /// Stop: the result is not wanted any more.
    Stop,
}

/// Asked before every layer, with the layer and the number of layers; and once more before the loss.
pub type Control<'a> = &'a mut dyn FnMut(usize, usize) -> Flow;

/// A model on a text.
pub struct Decoder {
    model: Arc<Model>,
    tokens: Arc<Vec<u32>>,
    /// One for each rotary way; none where positions are learned.
    ropes: Vec<RopeTable>,
}

impl Decoder {
    /// A decoder for these tokens. Takes memory for the rotary tables only.
    ///
    /// # Errors
    /// When the text has no token, or one that the model does not know.
    pub fn new(model: Arc<Model>, tokens: Arc<Vec<u32>>) -> Result<Self> {
        if tokens.is_empty() {
            return Err(Error::Text(
                "the text is empty: type or open one with at least one token".to_owned(),
            ));
        }
        let vocab_size = model.spec.vocab_size;
        if let Some(id) = tokens.iter().find(|&&id| id as usize >= vocab_size) {
            return Err(Error::Text(format!(
                "token {id} is not in this model's vocabulary of {vocab_size}"
            )));
        }
        let ropes = match &model.spec.positions {
            Positions::Rotary(ropes) => ropes
                .iter()
                .map(|rope| RopeTable::new(rope, model.spec.head_dim, tokens.len()))
                .collect(),
            Positions::Learned { rows, .. } if tokens.len() > *rows => {
                return Err(Error::Text(format!(
                    "the text has {} tokens, but this model has positions for {rows} only: use fewer (--context {rows})",
                    tokens.len()
                )));
            }
            Positions::Learned { .. } => Vec::new(),
        };
        Ok(Self {
            model,
            tokens,
            ropes,
        })
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The tokens.
    pub fn tokens(&self) -> &Arc<Vec<u32>> {
        &self.tokens
    }

    /// A map for this model with every head full.
    pub fn full_map(&self) -> WindowMap {
        WindowMap::full(self.model.spec.n_layers, self.model.spec.n_heads)
    }

    /// Runs the model under `windows`.
    ///
    /// Given traces of earlier runs on the same tokens, goes on from the layer in which the best of them first
    /// differs, and in that layer runs only the heads that changed. The result is the same as without them.
    ///
    /// # Errors
    /// [`Error::Windows`] for a map of another shape, [`Error::Cancelled`] when `control` says stop.
    pub fn run(
        &self,
        kernel: &mut dyn AttentionKernel,
        windows: &WindowMap,
        known: &[&Trace],
        control: Control<'_>,
    ) -> Result<(Run, Trace)> {
        let started = Instant::now();
        let spec = &self.model.spec;
        if windows.layers() != spec.n_layers || windows.heads() != spec.n_heads {
            return Err(Error::Windows(format!(
                "the window map is for {} layers of {} heads, but this model has {} of {}",
                windows.layers(),
                windows.heads(),
                spec.n_layers,
                spec.n_heads
            )));
        }
        let (from_layer, base) = known
            .iter()
            .map(|trace| {
                let same = windows
                    .first_difference(&trace.windows)
                    .unwrap_or(spec.n_layers);
                (same, *trace)
            })
            .max_by_key(|(same, _)| *same)
            .map_or((0, None), |(same, trace)| (same, Some(trace)));

        let mut layers: Vec<LayerTrace> =
            base.map_or_else(Vec::new, |t| t.layers[..from_layer].to_vec());
        let mut hidden: Arc<Vec<f32>> = match base.and_then(|t| t.layers.get(from_layer)) {
            Some(layer) => layer.input.clone(),
            // Nothing changed: only the end of the last layer is to do again.
            None if from_layer > 0 => {
                let last = from_layer - 1;
                self.finish_block(&self.model.weights.blocks[last], &layers[last])?
            }
            None => Arc::new(self.embed()?),
        };
        for (layer, block) in self
            .model
            .weights
            .blocks
            .iter()
            .enumerate()
            .skip(from_layer)
        {
            if control(layer, spec.n_layers) == Flow::Stop {
                return Err(Error::Cancelled);
            }
            // In the first changed layer, what went in is known: only changed heads are to run.
            let before = base
                .filter(|_| layer == from_layer)
                .and_then(|t| Some((t.layers.get(layer)?, &t.windows)));
            let trace = self.attend_layer(kernel, block, &hidden, windows, layer, before)?;
            hidden = self.finish_block(block, &trace)?;
            layers.push(trace);
        }
        if control(spec.n_layers, spec.n_layers) == Flow::Stop {
            return Err(Error::Cancelled);
        }
        let losses = self.loss(&hidden)?;
        let trace = Trace {
            windows: windows.clone(),
            layers,
        };
        let run = Run::measure(&trace, losses, from_layer, started.elapsed());
        Ok((run, trace))
    }

    /// Runs the model once with windows that `controller` chooses layer by layer, and gives the controller one step on.
    ///
    /// # Errors
    /// As [`Self::run`]; and where the controller is for another shape of model.
    pub fn step(
        &self,
        kernel: &mut dyn AttentionKernel,
        controller: &Controller,
        sinks: usize,
        control: Control<'_>,
    ) -> Result<(Controller, Run, Trace)> {
        let started = Instant::now();
        let spec = &self.model.spec;
        if controller.layers.len() != spec.n_layers || controller.n_heads() != spec.n_heads {
            return Err(Error::Windows(format!(
                "the controller is for {} layers of {} heads, but this model has {} of {}",
                controller.layers.len(),
                controller.n_heads(),
                spec.n_layers,
                spec.n_heads
            )));
        }
        // A copy: a step that is stopped half-way leaves nothing behind.
        let mut controller = controller.clone();
        let seq_len = self.tokens.len();
        let mut map = self.full_map().with_sinks(sinks);
        let mut layers = Vec::with_capacity(spec.n_layers);
        let mut hidden = Arc::new(self.embed()?);
        for (layer, block) in self.model.weights.blocks.iter().enumerate() {
            if control(layer, spec.n_layers) == Flow::Stop {
                return Err(Error::Cancelled);
            }
            let qkv = self.project(block, &hidden, layer)?;
            let outcome = controller.choose_layer(layer, head_moments(&qkv), seq_len)?;
            let jobs: Vec<HeadJob> = outcome
                .windows
                .iter()
                .enumerate()
                .map(|(head, &keys)| {
                    let window = Window::of_size(keys as usize, seq_len);
                    map.set(HeadId { layer, head }, window);
                    HeadJob {
                        head,
                        window,
                        reach: spec.layers[layer].reach,
                    }
                })
                .collect();
            let mut attended = Attended::zeros(&qkv.shape);
            kernel.attend(&qkv, &jobs, sinks, &mut attended)?;
            controller.observe_layer(layer, head_statistics(&qkv, &attended));
            let trace = LayerTrace {
                input: hidden.clone(),
                qkv,
                attended: Arc::new(attended),
                reach: spec.layers[layer].reach,
            };
            hidden = self.finish_block(block, &trace)?;
            layers.push(trace);
        }
        controller.finish_step();
        let losses = self.loss(&hidden)?;
        let trace = Trace {
            windows: map,
            layers,
        };
        let run = Run::measure(&trace, losses, 0, started.elapsed());
        Ok((controller, run, trace))
    }

    fn loss(&self, hidden: &[f32]) -> Result<Vec<f32>> {
        let weights = &self.model.weights;
        let normed = self.norm(hidden, &weights.final_norm);
        token_loss(&normed, &self.logit_head(), &self.tokens[1..])
    }

    fn logit_head(&self) -> LogitHead<'_> {
        let (weights, spec) = (&self.model.weights, &self.model.spec);
        LogitHead {
            weight: &weights.head,
            bias: weights.head_bias.as_deref(),
            scale: spec.logit_scale,
            softcap: spec.logit_softcap,
        }
    }

    /// Logits of every position, `[T, V]`: for tests and small models, since the engine never keeps them.
    ///
    /// # Errors
    /// When a product fails.
    pub fn logits(&self, trace: &Trace) -> Result<Vec<f32>> {
        let weights = &self.model.weights;
        let hidden = match (weights.blocks.last(), trace.layers.last()) {
            (Some(block), Some(layer)) => self.finish_block(block, layer)?,
            _ => Arc::new(self.embed()?),
        };
        let normed = self.norm(&hidden, &weights.final_norm);
        let mut logits = vec![0.0; self.tokens.len() * self.model.spec.vocab_size];
        product(&normed, &weights.head, &mut logits, Mode::Replace)?;
        let head = self.logit_head();
        for row in logits.chunks_mut(self.model.spec.vocab_size) {
            head.finish(row, 0);
        }
        Ok(logits)
    }

    fn norm(&self, x: &[f32], weights: &Norm) -> Vec<f32> {
        let spec = &self.model.spec;
        norm(x, spec.norm, weights, spec.hidden, spec.norm_eps)
    }

    /// The norm where there is one, else the same numbers.
    fn norm_or_same<'x>(&self, x: &'x [f32], weights: Option<&Norm>) -> Cow<'x, [f32]> {
        match weights {
            Some(weights) => Cow::Owned(self.norm(x, weights)),
            None => Cow::Borrowed(x),
        }
    }

    fn embed(&self) -> Result<Vec<f32>> {
        let ids = Tensor::from_slice(&self.tokens, self.tokens.len(), &Device::Cpu)?;
        let rows = self.model.weights.embedding.index_select(&ids, 0)?;
        let mut hidden: Vec<f32> = rows.flatten_all()?.to_vec1()?;
        scale(&mut hidden, self.model.spec.embedding_scale);
        if let (Some(positions), Positions::Learned { offset, .. }) =
            (&self.model.weights.positions, &self.model.spec.positions)
        {
            add_assign(&mut hidden, &positions[offset * self.model.spec.hidden..]);
        }
        Ok(hidden)
    }

    fn attend_layer(
        &self,
        kernel: &mut dyn AttentionKernel,
        block: &BlockWeights,
        hidden: &Arc<Vec<f32>>,
        windows: &WindowMap,
        layer: usize,
        before: Option<(&LayerTrace, &WindowMap)>,
    ) -> Result<LayerTrace> {
        let seq_len = self.tokens.len();
        let reach = self.model.spec.layers[layer].reach;
        let qkv = match before {
            Some((known, _)) => known.qkv.clone(),
            None => self.project(block, hidden, layer)?,
        };
        let jobs: Vec<HeadJob> = windows
            .layer(layer)
            .iter()
            .enumerate()
            .filter(|&(head, window)| {
                before.is_none_or(|(_, old)| {
                    old.sinks != windows.sinks
                        || old.get(HeadId { layer, head }).size(seq_len) != window.size(seq_len)
                })
            })
            .map(|(head, &window)| HeadJob {
                head,
                window,
                reach,
            })
            .collect();
        let mut attended = before.map_or_else(
            || Attended::zeros(&qkv.shape),
            |(known, _)| (*known.attended).clone(),
        );
        kernel.attend(&qkv, &jobs, windows.sinks, &mut attended)?;
        Ok(LayerTrace {
            input: hidden.clone(),
            qkv,
            attended: Arc::new(attended),
            reach,
        })
    }

    fn project(&self, block: &BlockWeights, hidden: &[f32], layer: usize) -> Result<Qkv> {
        let spec = &self.model.spec;
        let normed = self.norm_or_same(hidden, block.attention_norm.as_ref());
        let mut q = linear(&block.query, &normed)?;
        let mut k = linear(&block.key, &normed)?;
        let v = linear(&block.value, &normed)?;
        if let Some(weights) = &block.qk_norm {
            let width = |n_heads: usize| {
                let heads = if weights.by_head { 1 } else { n_heads };
                heads * spec.head_dim
            };
            let of = |x: &[f32], part: &Norm, n_heads: usize| {
                norm(x, weights.kind, part, width(n_heads), spec.norm_eps)
            };
            q = of(&q, &weights.query, spec.n_heads);
            k = of(&k, &weights.key, spec.n_kv_heads);
        }
        if let Some(rope) = spec.layers[layer].rope.and_then(|r| self.ropes.get(r)) {
            rope.apply(&mut q, spec.n_heads);
            rope.apply(&mut k, spec.n_kv_heads);
        }
        Ok(Qkv {
            shape: AttentionShape {
                seq_len: self.tokens.len(),
                n_heads: spec.n_heads,
                n_kv_heads: spec.n_kv_heads,
                head_dim: spec.head_dim,
                scale: spec.attention_scale,
                softcap: spec.attention_softcap,
            },
            q: Arc::new(q),
            k: Arc::new(k),
            v: Arc::new(v),
        })
    }

    /// From a layer's head outputs to the residual stream after it.
    fn finish_block(&self, block: &BlockWeights, trace: &LayerTrace) -> Result<Arc<Vec<f32>>> {
        let spec = &self.model.spec;
        let heads = &trace.attended.out;
        let mut hidden = trace.input.to_vec();
        self.add_layer(
            &block.output,
            heads,
            block.attention_post_norm.as_ref(),
            &mut hidden,
        )?;
        // In a parallel block the feed-forward layer does not see what attention gave.
        let read: &[f32] = if spec.parallel { &trace.input } else { &hidden };
        let normed = self.norm_or_same(read, block.mlp_norm.as_ref());
        let mut inner = linear(block.gate.as_ref().unwrap_or(&block.up), &normed)?;
        match &block.gate {
            Some(_) => gate_mul(&mut inner, &linear(&block.up, &normed)?, spec.activation),
            None => activate(&mut inner, spec.activation),
        }
        drop(normed);
        self.add_layer(
            &block.down,
            &inner,
            block.mlp_post_norm.as_ref(),
            &mut hidden,
        )?;
        Ok(Arc::new(hidden))
    }

    /// Adds what a layer gives, normed and scaled as the model has it, to the residual stream.
    fn add_layer(
        &self,
        layer: &Linear,
        x: &[f32],
        post_norm: Option<&Norm>,
        hidden: &mut [f32],
    ) -> Result<()> {
        let factor = self.model.spec.residual_scale;
        let Some(weights) = post_norm else {
            return linear_onto(layer, x, factor, hidden);
        };
        let mut out = self.norm(&linear(layer, x)?, weights);
        scale(&mut out, factor);
        add_assign(hidden, &out);
        Ok(())
    }
}

/// `x W^T + b`, `[T, out]`.
fn linear(layer: &Linear, x: &[f32]) -> Result<Vec<f32>> {
    let (out, input) = layer.weight.dims2()?;
    let mut y = vec![0.0; x.len() / input.max(1) * out];
    product(x, &layer.weight, &mut y, Mode::Replace)?;
    if let Some(bias) = &layer.bias {
        add_bias(&mut y, bias);
    }
    Ok(y)
}

/// Adds `factor (x W^T + b)` to `onto`, `[T, out]`.
fn linear_onto(layer: &Linear, x: &[f32], factor: f32, onto: &mut [f32]) -> Result<()> {
    product(x, &layer.weight, onto, Mode::Add(factor))?;
    if let Some(bias) = &layer.bias {
        let scaled: Vec<f32> = bias.iter().map(|b| b * factor).collect();
        add_bias(onto, &scaled);
    }
    Ok(())
}
