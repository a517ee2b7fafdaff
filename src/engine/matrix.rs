//! [`HeadMatrix`]: the part of one head's attention matrix that is on the screen, pooled to its pixels.

use std::ops::Range;

use super::{
    Trace,
    cpu::attention::{HeadPart, visit_weights},
};
use crate::attention::HeadId;

/// How weights that share a pixel become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// The largest: single strong links stay visible.
    #[default]
    Max,
    /// The mean over all pairs of the pixel, hidden ones as 0: shows where the mass is.
    Mean,
}

/// Which part of which matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixRequest {
    /// The head.
    pub head: HeadId,
    /// Rows: queries, multiples of `bin` from 0 on.
    pub queries: Range<usize>,
    /// Columns: keys, multiples of `bin` from 0 on.
    pub keys: Range<usize>,
    /// Queries and keys in a pixel.
    pub bin: usize,
    /// How they are pooled.
    pub pooling: Pooling,
}

/// Attention weights of a part of a head's matrix.
#[derive(Clone, Debug)]
pub struct HeadMatrix {
    /// What was asked for.
    pub request: MatrixRequest,
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub columns: usize,
    /// Weights 0..1, `[rows, columns]`.
    pub values: Vec<f32>,
    /// The largest of all weights shown, with and without key 0.
    pub max: [f32; 2],
    /// The largest of each row, with and without key 0, `[rows]`.
    pub row_max: Vec<[f32; 2]>,
}

/// Computes a part of a head's matrix from what its run left: Q, K and the log-sum-exps.
///
/// Takes memory for the pixels only. `None` where the request lies outside the model or the text.
pub fn head_matrix(trace: &Trace, request: &MatrixRequest) -> Option<HeadMatrix> {
    let layer = trace.layers.get(request.head.layer)?;
    let shape = layer.qkv.shape;
    let bin = request.bin.max(1);
    let queries = request.queries.start..request.queries.end.min(shape.seq_len);
    let keys = request.keys.start..request.keys.end.min(shape.seq_len);
    if request.head.head >= shape.n_heads || queries.is_empty() || keys.is_empty() {
        return None;
    }
    let rows = queries.len().div_ceil(bin);
    let columns = keys.len().div_ceil(bin);
    let part = HeadPart {
        qkv: &layer.qkv,
        lse: &layer.attended.lse,
        head: request.head.head,
        window: trace.windows.get(request.head),
        reach: layer.reach,
        sinks: trace.windows.sinks,
        queries: queries.clone(),
        keys: keys.clone(),
    };
    // Sixteen queries are computed at a time: a group holds whole rows, and at least that many queries.
    let group = 16usize.next_multiple_of(bin);
    let rows_per_group = group / bin;
    let scale = 1.0 / (bin * bin) as f32;
    let pooling = request.pooling;
    let parts = visit_weights(
        &part,
        group,
        |_| vec![0.0f32; rows_per_group * columns],
        |pixels, query, key, weight| {
            let row = (query - queries.start) % group / bin;
            let pixel = &mut pixels[row * columns + (key - keys.start) / bin];
            match pooling {
                Pooling::Max => *pixel = pixel.max(weight),
                Pooling::Mean => *pixel += weight * scale,
            }
        },
    );
    let mut values = parts.concat();
    values.truncate(rows * columns);
    let row_max: Vec<[f32; 2]> = values
        .chunks(columns)
        .map(|row| {
            let max = |row: &[f32]| row.iter().copied().fold(0.0, f32::max);
            let rest = if keys.start == 0 { &row[1..] } else { row };
            [max(row), max(rest)]
        })
        .collect();
    let max = row_max.iter().fold([0.0f32; 2], |all, row| {
        [all[0].max(row[0]), all[1].max(row[1])]
    });
    Some(HeadMatrix {
        request: request.clone(),
        rows,
        columns,
        values,
        max,
        row_max,
    })
}

impl HeadMatrix {
    /// The weight shown for a pair, pooled as the picture is; `None` outside the part.
    pub fn weight(&self, query: usize, key: usize) -> Option<f32> {
        let bin = self.request.bin.max(1);
        let row = query.checked_sub(self.request.queries.start)? / bin;
        let column = key.checked_sub(self.request.keys.start)? / bin;
        (row < self.rows && column < self.columns).then(|| self.values[row * self.columns + column])
    }
}
