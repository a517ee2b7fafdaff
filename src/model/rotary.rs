//! From a configuration to the rotary ways of a model.

use super::{
    RopeScaling, RopeSpec,
    config::{Config, RopeParameters},
    mapping::Refuse,
};
use crate::Result;

/// What the architecture says of rotary positions, where the configuration says nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct RotaryDefaults {
    /// Share of a head that turns.
    pub share: f64,
    /// Whether neighbouring dimensions turn together.
    pub interleaved: bool,
    /// Scaling goes to layers with full attention only, where there are others.
    pub scales_full_only: bool,
}

/// The rotary ways of a model: one, or one for full and one for sliding layers.
pub(super) fn ropes(
    config: &Config,
    head_dim: usize,
    context: usize,
    defaults: RotaryDefaults,
    refuse: Refuse<'_>,
) -> Result<Vec<RopeSpec>> {
    let reader = Reader {
        config,
        head_dim,
        context: context as f64,
        defaults,
        refuse,
    };
    let parameters = config.rope_parameters.as_ref();
    if let Some((full, sliding)) = parameters.and_then(|p| {
        let both = (p.full_attention.as_deref(), p.sliding_attention.as_deref());
        both.0.zip(both.1)
    }) {
        return [full, sliding]
            .into_iter()
            .map(|p| reader.rope(Some(p)))
            .collect();
    }
    // One kind of layer only may be spelled out, too.
    let only = parameters.and_then(|p| {
        p.full_attention
            .as_deref()
            .or(p.sliding_attention.as_deref())
    });
    let parameters = only.or(parameters).or(config.rope_scaling.as_ref());
    let mut ropes = vec![reader.rope(parameters)?];
    let plain = |theta: f64| RopeSpec {
        theta,
        scaling: RopeScaling::Default,
        ..ropes[0].clone()
    };
    if let Some(theta) = config.rope_local_base_freq {
        reader.above_zero("theta of sliding layers", Some(theta))?;
        ropes.push(plain(theta));
    } else if defaults.scales_full_only && ropes[0].scaling != RopeScaling::Default {
        ropes.push(plain(ropes[0].theta));
    }
    Ok(ropes)
}

struct Reader<'a> {
    config: &'a Config,
    head_dim: usize,
    context: f64,
    defaults: RotaryDefaults,
    refuse: Refuse<'a>,
}

impl Reader<'_> {
    fn above_zero(&self, name: &str, value: Option<f64>) -> Result<f64> {
        match value {
            Some(v) if v.is_finite() && v > 0.0 => Ok(v),
            Some(v) => Err((self.refuse)(format!(
                "the rotary {name} is {v}; it must be above 0"
            ))),
            None => Err((self.refuse)(format!("the rotary scaling has no {name}"))),
        }
    }

    fn rope(&self, parameters: Option<&RopeParameters>) -> Result<RopeSpec> {
        let config = self.config;
        let theta = parameters
            .and_then(|p| p.rope_theta)
            .or(config.rope_theta)
            .or(config.rotary_emb_base)
            .unwrap_or(10_000.0);
        let theta = self.above_zero("theta", Some(theta))?;
        let share = parameters
            .and_then(|p| p.partial_rotary_factor)
            .or(config.partial_rotary_factor)
            .or(config.rotary_pct)
            .unwrap_or(self.defaults.share);
        if !(0.0..=1.0).contains(&share) {
            return Err((self.refuse)(format!(
                "the rotary share of a head is {share}; it must be from 0 to 1"
            )));
        }
        let rotary_dim = config
            .rotary_dim
            .unwrap_or((self.head_dim as f64 * share) as usize);
        if rotary_dim.next_multiple_of(2) > self.head_dim {
            return Err((self.refuse)(format!(
                "rotary positions turn {rotary_dim} dimensions in pairs, but a head has {}",
                self.head_dim
            )));
        }
        Ok(RopeSpec {
            rotary_dim,
            theta,
            scaling: match parameters {
                Some(parameters) => self.scaling(parameters, rotary_dim)?,
                None => RopeScaling::Default,
            },
            interleaved: self.defaults.interleaved,
        })
    }

    fn scaling(&self, p: &RopeParameters, rotary_dim: usize) -> Result<RopeScaling> {
        // A model that states it beside the scaling means that one.
        let original_context = self
            .config
            .original_max_position_embeddings
            .or(p.original_max_position_embeddings)
            .or(Some(self.context));
        Ok(match p.rope_type.as_deref() {
            None | Some("default") => RopeScaling::Default,
            Some("linear") => RopeScaling::Linear {
                factor: self.above_zero("factor", p.factor)?,
            },
            Some("dynamic") if rotary_dim <= 2 => {
                return Err((self.refuse)(
                    "rotary scaling \"dynamic\" needs more than 2 turning dimensions".to_owned(),
                ));
            }
            Some("dynamic") => RopeScaling::Dynamic {
                factor: self.above_zero("factor", p.factor)?,
                original_context: self.context,
            },
            Some("llama3") => RopeScaling::Llama3 {
                factor: self.above_zero("factor", p.factor)?,
                low_freq_factor: self.above_zero("low_freq_factor", p.low_freq_factor)?,
                high_freq_factor: self.above_zero("high_freq_factor", p.high_freq_factor)?,
                original_context: self
                    .above_zero("original_max_position_embeddings", original_context)?,
            },
            Some("yarn") => {
                let original_context =
                    self.above_zero("original_max_position_embeddings", original_context)?;
                let factor = p.factor.unwrap_or(self.context / original_context);
                let factor = self.above_zero("factor", Some(factor))?;
                let amplitude = match (p.attention_factor, p.mscale, p.mscale_all_dim) {
                    (Some(given), ..) => given,
                    (None, Some(one), Some(all)) if one != 0.0 && all != 0.0 => {
                        yarn_amplitude(factor, one) / yarn_amplitude(factor, all)
                    }
                    _ => yarn_amplitude(factor, 1.0),
                };
                RopeScaling::Yarn {
                    factor,
                    original_context,
                    beta_fast: self.above_zero("beta_fast", Some(p.beta_fast.unwrap_or(32.0)))?,
                    beta_slow: self.above_zero("beta_slow", Some(p.beta_slow.unwrap_or(1.0)))?,
                    truncate: p.truncate.unwrap_or(true),
                    amplitude: self.above_zero("attention_factor", Some(amplitude))?,
                }
            }
            // Phi-3's first files say "su" for it.
            Some("longrope" | "su") => {
                let original_context =
                    self.above_zero("original_max_position_embeddings", original_context)?;
                let factor = p.factor.unwrap_or(self.context / original_context);
                let amplitude = p.attention_factor.unwrap_or(if factor <= 1.0 {
                    1.0
                } else {
                    (1.0 + factor.ln() / original_context.ln()).sqrt()
                });
                RopeScaling::LongRope {
                    short: self.divisors("short_factor", p.short_factor.as_ref(), rotary_dim)?,
                    long: self.divisors("long_factor", p.long_factor.as_ref(), rotary_dim)?,
                    original_context,
                    amplitude: self.above_zero("attention_factor", Some(amplitude))?,
                }
            }
            Some(other) => {
                return Err((self.refuse)(format!(
                    "rotary scaling \"{other}\" is not supported; supported: default, linear, dynamic, llama3, \
                     yarn, longrope"
                )));
            }
        })
    }

    fn divisors(
        &self,
        name: &str,
        given: Option<&Vec<f64>>,
        rotary_dim: usize,
    ) -> Result<Vec<f64>> {
        let given =
            given.ok_or_else(|| (self.refuse)(format!("the rotary scaling has no {name}")))?;
        if given.len() != rotary_dim.div_ceil(2) {
            return Err((self.refuse)(format!(
                "the rotary {name} has {} entries for {} turning pairs",
                given.len(),
                rotary_dim.div_ceil(2)
            )));
        }
        for &divisor in given {
            self.above_zero(name, Some(divisor))?;
        }
        Ok(given.clone())
    }
}

/// YaRN's factor of queries and keys.
fn yarn_amplitude(factor: f64, weight: f64) -> f64 {
    if factor <= 1.0 {
        1.0
    } else {
        0.1 * weight * factor.ln() + 1.0
    }
}
