//! The heat map's shader against its CPU twin, pixel by pixel.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use egui::{Color32, Pos2, Rect, vec2};
use egui_kittest::Harness;
use headscope::{
    attention::HeadId,
    engine::{HeadMatrix, MatrixRequest, Pooling},
    render::{
        HeatmapPaint, HeatmapStyle, Normalisation, ViewRect, colormap::ColorMap, heatmap_color,
    },
};

const T: usize = 12;

fn matrix() -> Arc<HeadMatrix> {
    let mut values = vec![0.0f32; T * T];
    for query in 0..T {
        for key in 0..=query {
            values[query * T + key] =
                ((query * 7 + key * 13) % 17) as f32 / 17.0 / (1 + query) as f32;
        }
    }
    let max = |row: &[f32]| row.iter().copied().fold(0.0, f32::max);
    let row_max: Vec<[f32; 2]> = values.chunks(T).map(|r| [max(r), max(&r[1..])]).collect();
    let max = row_max
        .iter()
        .fold([0.0f32; 2], |a, r| [a[0].max(r[0]), a[1].max(r[1])]);
    Arc::new(HeadMatrix {
        request: MatrixRequest {
            head: HeadId { layer: 0, head: 0 },
            queries: 0..T,
            keys: 0..T,
            bin: 1,
            pooling: Pooling::Max,
        },
        rows: T,
        columns: T,
        values,
        max,
        row_max,
    })
}

#[test]
fn the_shader_paints_what_its_twin_says() {
    let matrix = matrix();
    for (log, normalisation, without_first, window, sinks) in [
        (true, Normalisation::Row, true, 4, 2),
        (false, Normalisation::All, false, T, 0),
        (true, Normalisation::All, false, 1, 0),
        (false, Normalisation::Row, true, 7, 1),
    ] {
        let style = HeatmapStyle {
            log,
            normalisation,
            without_first,
            colors: ColorMap::Magma,
            empty: Color32::from_rgb(10, 20, 30),
            veil: Color32::from_rgba_unmultiplied(200, 100, 50, 128),
        };
        let make = {
            let matrix = matrix.clone();
            move |target| HeatmapPaint {
                matrix: Some(matrix.clone()),
                view: ViewRect {
                    key: 0.0,
                    query: 0.0,
                    keys: T as f32,
                    queries: T as f32,
                },
                style,
                seq_len: T,
                window,
                sinks,
                target,
            }
        };
        let cell = 10.0;
        let twin = make(wgpu::TextureFormat::Rgba8Unorm);
        let mut harness = Harness::builder()
            .with_size(vec2(T as f32 * cell, T as f32 * cell))
            .with_render_cursor(false)
            .wgpu()
            .build_eframe(|cc| {
                let target = cc.wgpu_render_state.as_ref().unwrap().target_format;
                Painter(make(target))
            });
        harness.step();
        let image = harness.render().unwrap();
        for query in 0..T {
            for key in 0..T {
                let at = |token: usize| (token as f32 * cell + cell / 2.0) as u32;
                let got = image.get_pixel(at(key), at(query)).0;
                let want = heatmap_color(&twin, query, key).to_array();
                let error = (0..3).map(|c| got[c].abs_diff(want[c])).max().unwrap();
                assert!(error <= 3, "({query}, {key}): {got:?}, not {want:?}");
            }
        }
    }
}

struct Painter(HeatmapPaint);

impl eframe::App for Painter {
    fn ui(&mut self, ui: &mut egui::Ui, _frame: &mut eframe::Frame) {
        let rect = Rect::from_min_size(Pos2::ZERO, ui.ctx().content_rect().size());
        ui.painter().add(egui_wgpu::Callback::new_paint_callback(
            rect,
            self.0.clone(),
        ));
    }
}
