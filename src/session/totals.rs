//! Numbers over all passages and texts of a document: means, and their spread from text to text.

use std::sync::Arc;

use serde::Serialize;

use super::Session;
use crate::{attention::coverage::map_coverage, engine::PassageResult};

/// A mean, and the standard deviation of what it is of (over n - 1); none for a single value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// The standard deviation.
    pub spread: Option<f64>,
}

impl Mean {
    /// Of values that count alike; `None` of none.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
        Some(Self {
            mean,
            spread: (values.len() > 1).then(|| (squares / (count - 1.0)).sqrt()),
        })
    }
}

/// One text of a document, all its passages together.
#[derive(Clone, Debug, Serialize)]
pub struct TextNumbers {
    /// What it is called.
    pub name: String,
    /// Its passages: 1 where it is run whole.
    pub blocks: usize,
    /// Passages that have run so far.
    pub blocks_done: usize,
    /// Tokens of all passages, those for beginnings included.
    pub tokens: usize,
    /// Bytes of the passages' text.
    pub bytes: usize,
    /// Mean loss with full attention over the predicted tokens of the passages that have run, nats.
    pub loss_full: Option<f64>,
    /// The same under the windows.
    pub loss_windowed: Option<f64>,
    /// Mean share of full attention's mass that the windows keep.
    pub mass_coverage: Option<f64>,
}

/// All texts together.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Each text.
    pub texts: Vec<TextNumbers>,
    /// Passages that have run under the current windows, of how many.
    pub done: (usize, usize),
    /// Mean over all predicted tokens with full attention.
    pub loss_full: Option<f64>,
    /// The same under the windows, of the passages that have run under them.
    pub loss_windowed: Option<f64>,
    /// Mean over all queries of the mass that the windows keep.
    pub mass_coverage: Option<f64>,
    /// Over texts (over blocks, where there is one text): loss with full attention.
    pub spread_full: Option<Mean>,
    /// Loss change.
    pub spread_delta: Option<Mean>,
    /// Coverage.
    pub spread_coverage: Option<Mean>,
}

/// A sum of `value * weight`.
#[derive(Clone, Copy, Default)]
struct Weighted {
    sum: f64,
    weight: f64,
}

impl Weighted {
    fn add(&mut self, value: Option<f64>, weight: usize) {
        if let Some(value) = value {
            self.sum += value * weight as f64;
            self.weight += weight as f64;
        }
    }

    fn mean(self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.sum / self.weight)
    }
}

/// What is known of one passage under the current windows.
#[derive(Clone, Copy, Default)]
struct Known {
    full: Option<f64>,
    windowed: Option<f64>,
    coverage: Option<f64>,
}

impl Session {
    /// Keeps what was found of the passage on show, for when another is.
    pub(super) fn keep_current(&mut self) {
        let Some(baseline) = &self.baseline else {
            return;
        };
        let result = PassageResult {
            tokens: self.tokens.clone(),
            full: baseline.run.clone(),
            profile: baseline.profile.clone(),
            sinks: self.sinks.clone(),
            windowed: self.windowed.as_ref().map(|w| w.run.clone()),
        };
        let current = self.current;
        if let Some(slot) = self.results.get_mut(current) {
            *slot = Some(Arc::new(result));
        }
    }

    /// Numbers over all passages. Cheap enough for every change, not for every frame.
    pub fn totals(&self) -> Totals {
        let known: Vec<Known> = (0..self.passages.len()).map(|i| self.known(i)).collect();
        let mut totals = Totals {
            done: (
                known.iter().filter(|k| k.windowed.is_some()).count(),
                known.len(),
            ),
            ..Totals::default()
        };
        let mut all = [Weighted::default(); 3];
        for (index, source) in self.sources.iter().enumerate() {
            let mut own = [Weighted::default(); 3];
            let mut numbers = TextNumbers {
                name: source.name.clone(),
                blocks: 0,
                blocks_done: 0,
                tokens: 0,
                bytes: 0,
                loss_full: None,
                loss_windowed: None,
                mass_coverage: None,
            };
            for (passage, known) in self.passages.iter().zip(&known) {
                if passage.source != index {
                    continue;
                }
                let predicted = passage.tokens.len().saturating_sub(1);
                numbers.blocks += 1;
                numbers.blocks_done += usize::from(known.windowed.is_some());
                numbers.tokens += passage.tokens.len();
                numbers.bytes += passage.text.text.len();
                for sums in [&mut own, &mut all] {
                    // A difference is fair only between losses of the same tokens.
                    let both = known.full.filter(|_| known.windowed.is_some());
                    sums[0].add(both, predicted);
                    sums[1].add(known.windowed, predicted);
                    sums[2].add(known.coverage, passage.tokens.len());
                }
            }
            numbers.loss_full = own[0].mean();
            numbers.loss_windowed = own[1].mean();
            numbers.mass_coverage = own[2].mean();
            totals.texts.push(numbers);
        }
        [totals.loss_full, totals.loss_windowed, totals.mass_coverage] = all.map(Weighted::mean);
        let units: Vec<Known> = if self.sources.len() > 1 {
            let of_text = |t: &TextNumbers| Known {
                full: t.loss_full,
                windowed: t.loss_windowed,
                coverage: t.mass_coverage,
            };
            totals.texts.iter().map(of_text).collect()
        } else {
            known
        };
        let spread = |value: &dyn Fn(&Known) -> Option<f64>| {
            Mean::of(&units.iter().filter_map(value).collect::<Vec<_>>())
        };
        totals.spread_full = spread(&|k| k.full.filter(|_| k.windowed.is_some()));
        totals.spread_delta = spread(&|k| Some(k.windowed? - k.full?));
        totals.spread_coverage = spread(&|k| k.coverage);
        totals
    }

    /// Coverage of one head's window `keys` over all passages that have run: mean and spread.
    pub fn mean_coverage(
        &self,
        head: crate::attention::HeadId,
        window: crate::attention::Window,
    ) -> Option<Mean> {
        let values: Vec<f64> = (0..self.passages.len())
            .filter_map(|index| {
                let profile = match (index == self.current, &self.baseline) {
                    (true, Some(baseline)) => &baseline.profile,
                    _ => &self.results.get(index)?.as_ref()?.profile,
                };
                Some(f64::from(profile.coverage(head, window)))
            })
            .collect();
        Mean::of(&values)
    }

    fn known(&self, index: usize) -> Known {
        if index == self.current && self.baseline.is_some() {
            let summary = self.summary();
            return Known {
                full: summary.loss_full,
                windowed: summary.loss_windowed.filter(|_| summary.is_current),
                coverage: summary.mass_coverage,
            };
        }
        let Some(result) = self.results.get(index).and_then(Option::as_ref) else {
            return Known::default();
        };
        let windowed = result
            .windowed
            .as_ref()
            .filter(|run| run.windows == self.windows);
        let sinks = result
            .sinks
            .as_deref()
            .filter(|s| s.sinks() == self.windows.sinks && self.windows.sinks > 0);
        Known {
            full: result.full.mean_loss(),
            windowed: windowed.and_then(|run| run.mean_loss()),
            coverage: Some(map_coverage(&result.profile, sinks, &self.windows)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_and_spreads() {
        assert_eq!(Mean::of(&[]), None);
        let one = Mean::of(&[3.0]).unwrap();
        assert_eq!((one.mean, one.spread), (3.0, None));
        let three = Mean::of(&[1.0, 2.0, 6.0]).unwrap();
        assert!((three.mean - 3.0).abs() < 1e-12);
        assert!((three.spread.unwrap() - 7.0f64.sqrt()).abs() < 1e-12);
    }
}
