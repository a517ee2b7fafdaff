//! Window maps of other tools: the paper's heat-map CSV and DuoAttention's head patterns.

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;

use super::WindowsFile;
use crate::{
    Error, Result,
    attention::{HeadId, Window, WindowMap},
};

/// Far above any real file.
const MAX_BYTES: u64 = 32 << 20;
/// No model has more layers, or heads a layer.
const MAX_SIDE: usize = 1 << 12;
/// DuoAttention's own split of its scores.
const DEFAULT_THRESHOLD: f32 = 0.5;

/// How head patterns become windows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PatternOptions {
    /// Heads whose score is at least this stay full; 0.5 if neither is given.
    pub threshold: Option<f32>,
    /// This share of heads, those with the lowest scores, get sinks and recent keys only.
    pub sparsity: Option<f32>,
    /// First keys kept; else the `config.json` beside the file says.
    pub sinks: Option<usize>,
    /// Recent keys kept; else the `config.json` beside the file says.
    pub recent: Option<usize>,
}

/// Reads a window map of any kind, by its ending: `.json`, `.csv`, `.tsv`; for a model of `layers` by `heads`.
///
/// # Errors
/// When it is not one, or made for another shape of model; both shapes are named then.
pub fn read_map(
    path: &Path,
    (layers, heads): (usize, usize),
    options: PatternOptions,
) -> Result<WindowMap> {
    let ending = path.extension().map(|e| e.to_ascii_lowercase());
    let is = |wanted: &str| ending.as_ref().is_some_and(|e| e == wanted);
    let refuse = |message: String| {
        Error::Windows(format!("{} is not a window map: {message}", path.display()))
    };
    let map = if is("csv") {
        parse_heat_map(&read(path)?).map_err(refuse)?
    } else if is("tsv") {
        let scores = parse_scores(&read(path)?).map_err(refuse)?;
        let options = with_config(path, options)?;
        patterns_to_map(&scores, heads, options).map_err(refuse)?
    } else {
        WindowsFile::read(path)?.map()
    };
    if (map.layers(), map.heads()) != (layers, heads) {
        return Err(Error::Windows(format!(
            "{} is for {} layers of {} heads, but this model has {layers} of {heads}",
            path.display(),
            map.layers(),
            map.heads()
        )));
    }
    Ok(map)
}

/// The text of a window map's file, its size checked first.
pub(super) fn read(path: &Path) -> Result<String> {
    let size = std::fs::metadata(path)
        .map_err(|e| Error::io("read", path, e))?
        .len();
    if size > MAX_BYTES {
        return Err(Error::Windows(format!(
            "{} is {size} bytes long, which no window map is",
            path.display()
        )));
    }
    let bytes = std::fs::read(path).map_err(|e| Error::io("read", path, e))?;
    String::from_utf8(bytes)
        .map_err(|_| Error::Windows(format!("{} is not a text file", path.display())))
}

type Parsed<T> = std::result::Result<T, String>;

/// The paper's heat map: one row a head and evaluation; of a head that comes several times the last row counts.
fn parse_heat_map(text: &str) -> Parsed<WindowMap> {
    let mut lines = text
        .lines()
        .enumerate()
        .filter(|(_, l)| !l.trim().is_empty());
    let (_, header) = lines.next().ok_or("it is empty")?;
    let names: Vec<&str> = header.split(',').map(str::trim).collect();
    let column = |name: &str| {
        names
            .iter()
            .position(|n| *n == name)
            .ok_or_else(|| format!("it has no column {name}"))
    };
    let columns = [
        column("layer_id")?,
        column("head_id")?,
        column("final_window_size")?,
    ];
    let mut windows = BTreeMap::new();
    for (number, line) in lines {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let field = |index: usize| -> Parsed<usize> {
            let text = fields.get(columns[index]).copied().unwrap_or("");
            // Some tools write whole numbers with a point.
            let value: f64 = text
                .parse()
                .map_err(|_| format!("line {}: \"{text}\" is no number", number + 1))?;
            if value.fract() != 0.0 || !(0.0..=f64::from(u32::MAX)).contains(&value) {
                return Err(format!(
                    "line {}: {text} is not a whole number from 0 on",
                    number + 1
                ));
            }
            Ok(value as usize)
        };
        let (layer, head) = (field(0)?, field(1)?);
        if layer >= MAX_SIDE || head >= MAX_SIDE {
            return Err(format!(
                "line {}: layer {layer}, head {head} is too large",
                number + 1
            ));
        }
        let window = Window::last(field(2)?)
            .ok_or_else(|| format!("line {}: a window of 0 keys is not possible", number + 1))?;
        windows.insert(HeadId { layer, head }, window);
    }
    let layers = windows
        .keys()
        .map(|h| h.layer + 1)
        .max()
        .ok_or("it has no row")?;
    let heads = windows.keys().map(|h| h.head + 1).max().unwrap_or(0);
    if windows.len() != layers * heads {
        return Err(format!(
            "it has {} heads, but the largest layer and head stand for {layers} layers of {heads}",
            windows.len()
        ));
    }
    let mut map = WindowMap::full(layers, heads);
    for (head, window) in windows {
        map.set(head, window);
    }
    Ok(map)
}

/// A map in the columns of the paper's heat map, for a text of `seq_len` tokens and these candidate windows.
pub fn heat_map_csv(map: &WindowMap, regime: &str, candidates: &[u32], seq_len: usize) -> String {
    let mut out = String::from(
        "regime,layer_id,head_id,selected_window_idx,selected_window_size,pre_clamp_window_idx,\
         final_window_idx,final_window_size,ACR\n",
    );
    for (head, window) in map.iter() {
        let size = window.size(seq_len);
        // The candidate that a window is, or the least that holds it.
        let index = candidates
            .iter()
            .position(|&c| c as usize >= size)
            .unwrap_or(candidates.len().saturating_sub(1));
        let acr = crate::attention::pairs::acr(map.layer(head.layer), seq_len);
        out += &format!(
            "{regime},{},{},{index},{size},{index},{index},{size},{acr}\n",
            head.layer, head.head
        );
    }
    out
}

/// DuoAttention's scores, layers by key/value heads, clipped to 0..1.
fn parse_scores(text: &str) -> Parsed<Vec<Vec<f32>>> {
    let mut rows: Vec<Vec<f32>> = Vec::new();
    for (number, line) in text
        .lines()
        .enumerate()
        .filter(|(_, l)| !l.trim().is_empty())
    {
        let row = line
            .split_whitespace()
            .map(|field| match field.parse::<f32>() {
                Ok(score) if score.is_finite() => Ok(score.clamp(0.0, 1.0)),
                _ => Err(format!("line {}: \"{field}\" is no score", number + 1)),
            })
            .collect::<Parsed<Vec<f32>>>()?;
        if rows.first().is_some_and(|first| first.len() != row.len()) {
            return Err(format!(
                "line {} has {} scores, the first has {}",
                number + 1,
                row.len(),
                rows[0].len()
            ));
        }
        rows.push(row);
        if rows.len() > MAX_SIDE {
            return Err("it has too many lines".to_owned());
        }
    }
    if rows.is_empty() {
        return Err("it is empty".to_owned());
    }
    Ok(rows)
}

/// Fills in what the configuration beside the file says: `NAME.config.json`, or `config.json`.
fn with_config(path: &Path, mut options: PatternOptions) -> Result<PatternOptions> {
    #[derive(Deserialize)]
    struct Config {
        sink_size: Option<usize>,
        recent_size: Option<usize>,
    }
    if options.sinks.is_some() && options.recent.is_some() {
        return Ok(options);
    }
    let places = [
        path.with_extension("config.json"),
        path.with_file_name("config.json"),
    ];
    if let Some(place) = places.iter().find(|p| p.is_file()) {
        let config: Config = serde_json::from_str(&read(place)?).map_err(|e| {
            Error::Windows(format!("{} is not a configuration: {e}", place.display()))
        })?;
        options.sinks = options.sinks.or(config.sink_size);
        options.recent = options.recent.or(config.recent_size);
    }
    Ok(options)
}

fn patterns_to_map(
    scores: &[Vec<f32>],
    heads: usize,
    options: PatternOptions,
) -> Parsed<WindowMap> {
    let kv_heads = scores[0].len();
    if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        return Err(format!(
            "it is for {} layers of {kv_heads} key/value heads, which cannot be shared by this model's {heads} heads",
            scores.len()
        ));
    }
    let missing =
        |what: &str| format!("no config.json beside it says what to keep as {what}: give --{what}");
    let sinks = options.sinks.ok_or_else(|| missing("sinks"))?;
    let recent = options.recent.ok_or_else(|| missing("recent"))?;
    let window = Window::last(recent).ok_or("0 recent keys are not possible")?;
    let mut order: Vec<HeadId> = (0..scores.len())
        .flat_map(|layer| (0..kv_heads).map(move |head| HeadId { layer, head }))
        .collect();
    let score = |h: &HeadId| scores[h.layer][h.head];
    // The lowest first; the first among equals.
    order.sort_by(|a, b| score(a).total_cmp(&score(b)).then(a.cmp(b)));
    let streaming = match options.sparsity {
        Some(share) => (share.clamp(0.0, 1.0) * order.len() as f32).round() as usize,
        None => {
            let threshold = options.threshold.unwrap_or(DEFAULT_THRESHOLD);
            order.partition_point(|h| score(h) < threshold)
        }
    };
    let share = heads / kv_heads;
    let mut map = WindowMap::full(scores.len(), heads).with_sinks(sinks);
    for kv in &order[..streaming] {
        for head in kv.head * share..(kv.head + 1) * share {
            map.set(
                HeadId {
                    layer: kv.layer,
                    head,
                },
                window,
            );
        }
    }
    Ok(map)
}

/// A map as head patterns: 1 for a key/value head all of whose heads are full in a text of `seq_len`, else 0.
pub fn patterns_tsv(map: &WindowMap, kv_heads: usize, seq_len: usize) -> String {
    let share = (map.heads() / kv_heads.max(1)).max(1);
    let mut out = String::new();
    for layer in 0..map.layers() {
        let row: Vec<&str> = map
            .layer(layer)
            .chunks(share)
            .map(|heads| {
                if heads.iter().all(|w| w.is_full_at(seq_len)) {
                    "1"
                } else {
                    "0"
                }
            })
            .collect();
        out += &row.join("\t");
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_maps_round_trip_and_the_last_row_counts() {
        let mut map = WindowMap::uniform(2, 3, Window::Last(512));
        map.set(HeadId { layer: 1, head: 2 }, Window::Last(64));
        let csv = heat_map_csv(&map, "full_adaptive", &[64, 512], 1024);
        assert_eq!(parse_heat_map(&csv).unwrap(), map);
        let again = format!("{csv}full_adaptive,0,0,0,64,0,0,64,1\n");
        let parsed = parse_heat_map(&again).unwrap();
        assert_eq!(parsed.get(HeadId { layer: 0, head: 0 }), Window::Last(64));
    }

    #[test]
    fn broken_heat_maps_are_refused() {
        let refuse = |text: &str| parse_heat_map(text).unwrap_err();
        assert!(refuse("").contains("empty"));
        assert!(refuse("a,b\n1,2").contains("no column layer_id"));
        let with = |row: &str| format!("layer_id,head_id,final_window_size\n{row}");
        assert!(refuse(&with("0,0,x")).contains("line 2: \"x\" is no number"));
        assert!(refuse(&with("0,0,0")).contains("0 keys"));
        assert!(refuse(&with("99999999,0,1")).contains("too large"));
        assert!(refuse(&with("0,0,5\n3,1,5")).contains("2 heads"));
        assert!(refuse(&with("0,0,-1")).contains("whole number"));
    }

    #[test]
    fn patterns_become_windows_for_all_heads_that_share_keys() {
        let scores = parse_scores("-0.0001\t0.9\n0.6\t1.0\n").unwrap();
        assert_eq!(scores[0][0], 0.0);
        let options = PatternOptions {
            sinks: Some(4),
            recent: Some(16),
            ..PatternOptions::default()
        };
        let map = patterns_to_map(&scores, 4, options).unwrap();
        let expected = [
            Window::Last(16),
            Window::Last(16),
            Window::Full,
            Window::Full,
        ];
        assert_eq!(map.layer(0), expected);
        assert!(map.layer(1).iter().all(|w| *w == Window::Full));
        assert_eq!(map.sinks, 4);
        let half = PatternOptions {
            sparsity: Some(0.5),
            ..options
        };
        let map = patterns_to_map(&scores, 2, half).unwrap();
        assert_eq!(map.layer(0), [Window::Last(16), Window::Full]);
        assert_eq!(map.layer(1), [Window::Last(16), Window::Full]);
        assert_eq!(patterns_tsv(&map, 2, 100), "0\t1\n0\t1\n");
        assert!(
            patterns_to_map(&scores, 3, options)
                .unwrap_err()
                .contains("3 heads")
        );
        assert!(
            patterns_to_map(&scores, 4, PatternOptions::default())
                .unwrap_err()
                .contains("--sinks")
        );
    }

    #[test]
    fn real_files_of_other_people() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/real-files");
        if !folder.is_dir() {
            println!("skipped: {} is not here", folder.display());
            return;
        }
        let csv = folder.join("paper-heatmaps/qwen3-4b-full-adaptive.csv");
        let map = read_map(&csv, (36, 32), PatternOptions::default()).unwrap();
        assert!(
            map.iter()
                .all(|(_, w)| [512, 1024, 2048, 4096].map(Window::Last).contains(&w))
        );
        let error = read_map(&csv, (6, 8), PatternOptions::default())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("36 layers of 32 heads") && error.contains("6 of 8"),
            "{error}"
        );
        let tsv = folder.join("head-patterns/mistral-7b-v0.2.tsv");
        let map = read_map(&tsv, (32, 32), PatternOptions::default()).unwrap();
        assert_eq!(map.sinks, 128);
        let streaming = map.iter().filter(|(_, w)| *w == Window::Last(256)).count();
        assert!(
            streaming > 0 && streaming % 4 == 0 && streaming < 32 * 32,
            "{streaming}"
        );
    }
}
