//! What is to be known of a choice (section 7): histogram, routing quality, margins, collapse.

use super::{controller::Choice, hierarchy::Hierarchy};

/// Share of heads at the smallest or largest window from which a layer counts as collapsed.
const COLLAPSE: f64 = 0.98;

/// Heads at each window, in order of size: `(window, heads)`.
pub fn histogram(windows: impl Iterator<Item = u32>) -> Vec<(u32, usize)> {
    let mut counts = std::collections::BTreeMap::new();
    for window in windows {
        *counts.entry(window).or_insert(0) += 1;
    }
    counts.into_iter().collect()
}

/// Whether nearly all heads sit at the smallest, or at the largest, candidate.
pub fn collapsed(windows: &[u32], candidates: &[u32]) -> (bool, bool) {
    let share = |of: Option<&u32>| {
        let count = windows.iter().filter(|w| Some(*w) == of).count();
        !windows.is_empty() && count as f64 / windows.len() as f64 >= COLLAPSE
    };
    (share(candidates.first()), share(candidates.last()))
}

/// Mean difference between the best and the second logit over all groups of all levels; `None` without two windows.
pub fn mean_margin(choice: &Choice) -> Option<f32> {
    let margins: Vec<f32> = choice
        .logits
        .iter()
        .flatten()
        .filter(|l| l.len() > 1)
        .map(|l| {
            let mut sorted = l.clone();
            sorted.sort_by(|a, b| b.total_cmp(a));
            sorted[0] - sorted[1]
        })
        .collect();
    (!margins.is_empty()).then(|| margins.iter().sum::<f32>() / margins.len() as f32)
}

/// Share of groups below the top whose choice differs from their parent's; `None` for a single level.
pub fn differs_from_parent(hierarchy: &Hierarchy, choice: &Choice) -> Option<f32> {
    let (mut all, mut differ) = (0usize, 0usize);
    for level in 0..hierarchy.levels.len().saturating_sub(1) {
        for (group, own) in choice.bounded[level].iter().enumerate() {
            if let Some(parent) = hierarchy.parent(level, group) {
                all += 1;
                differ += usize::from(*own != choice.bounded[level + 1][parent]);
            }
        }
    }
    (all > 0).then(|| differ as f32 / all as f32)
}

/// Where a map's coverage lies between chance (0) and the best assignment of the same windows (1), within each layer.
///
/// `coverage[h][j]` is the mass coverage of head `h` of a layer under the window that head `j` has. Chance is the mean
/// over all permutations, exactly: the mean of the whole matrix. The best assignment is exact too, by the Hungarian
/// method. `None` where all assignments are alike.
pub fn routing_quality(layers: &[Vec<Vec<f32>>]) -> Option<f64> {
    let (mut actual, mut chance, mut best) = (0.0, 0.0, 0.0);
    for coverage in layers {
        let n = coverage.len();
        if n == 0 {
            continue;
        }
        let sum: f64 = coverage.iter().flatten().map(|&c| f64::from(c)).sum();
        chance += sum / n as f64;
        actual += (0..n).map(|h| f64::from(coverage[h][h])).sum::<f64>();
        let assignment = best_assignment(coverage);
        best += assignment
            .iter()
            .enumerate()
            .map(|(h, &j)| f64::from(coverage[h][j]))
            .sum::<f64>();
    }
    (best - chance > 1e-9).then(|| (actual - chance) / (best - chance))
}

/// The assignment of columns to rows with the largest sum: the Hungarian method, `O(n³)`.
pub fn best_assignment(gain: &[Vec<f32>]) -> Vec<usize> {
    let n = gain.len();
    // Potentials of rows and columns; column j is matched to row `matched[j]`, both from 1, 0 for none.
    let (mut row_potential, mut column_potential) = (vec![0.0f64; n + 1], vec![0.0f64; n + 1]);
    let mut matched = vec![0usize; n + 1];
    let cost = |row: usize, column: usize| -f64::from(gain[row - 1][column - 1]);
    for row in 1..=n {
        matched[0] = row;
        let mut column = 0;
        let mut least = vec![f64::INFINITY; n + 1];
        let mut way = vec![0usize; n + 1];
        let mut done = vec![false; n + 1];
        while matched[column] != 0 {
            done[column] = true;
            let at = matched[column];
            let (mut delta, mut next) = (f64::INFINITY, 0);
            for j in 1..=n {
                if done[j] {
                    continue;
                }
                let reduced = cost(at, j) - row_potential[at] - column_potential[j];
                if reduced < least[j] {
                    least[j] = reduced;
                    way[j] = column;
                }
                if least[j] < delta {
                    delta = least[j];
                    next = j;
                }
            }
            for j in 0..=n {
                if done[j] {
                    row_potential[matched[j]] += delta;
                    column_potential[j] -= delta;
                } else {
                    least[j] -= delta;
                }
            }
            column = next;
        }
        while column != 0 {
            matched[column] = matched[way[column]];
            column = way[column];
        }
    }
    let mut assignment = vec![0; n];
    for column in 1..=n {
        assignment[matched[column] - 1] = column - 1;
    }
    assignment
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aah::rng::Rng;

    #[test]
    fn the_best_assignment_equals_trying_all() {
        let mut rng = Rng::new(3);
        for n in 1..=6 {
            for _ in 0..20 {
                let gain: Vec<Vec<f32>> = (0..n)
                    .map(|_| (0..n).map(|_| rng.unit()).collect())
                    .collect();
                let sum = |order: &[usize]| {
                    order
                        .iter()
                        .enumerate()
                        .map(|(r, &c)| f64::from(gain[r][c]))
                        .sum::<f64>()
                };
                let mut best = f64::NEG_INFINITY;
                permutations(&mut (0..n).collect::<Vec<_>>(), 0, &mut |order| {
                    best = best.max(sum(order));
                });
                assert!((sum(&best_assignment(&gain)) - best).abs() < 1e-9);
            }
        }
    }

    fn permutations(order: &mut Vec<usize>, at: usize, visit: &mut dyn FnMut(&[usize])) {
        if at == order.len() {
            return visit(order);
        }
        for i in at..order.len() {
            order.swap(at, i);
            permutations(order, at + 1, visit);
            order.swap(at, i);
        }
    }

    #[test]
    fn routing_quality_has_its_two_ends() {
        let best = vec![vec![vec![0.9, 0.5], vec![0.4, 0.3]]];
        assert!((routing_quality(&best).unwrap() - 1.0).abs() < 1e-6);
        let worst = vec![vec![vec![0.5, 0.9], vec![0.3, 0.4]]];
        assert!((routing_quality(&worst).unwrap() + 1.0).abs() < 1e-6);
        assert_eq!(routing_quality(&[vec![vec![0.5; 3]; 3]]), None);
    }
}
