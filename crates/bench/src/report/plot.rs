//! The drawing: bars of the figures side by side, one panel for each unit.
//!
//! It is for people, so each series has a readable name, and the legend a sample of its colour, in the order
//! of the bars. The colours are those of Okabe and Ito, which the colour-blind can tell apart, each with a
//! dark edge. The background is drawn, so that the page behind may be light or dark.

use super::{Report, Row, Status};
use crate::outcome::{Outcome, failed};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::Path;

const WIDTH: u32 = 1040;
const PANEL: u32 = 360;
/// Pixels at the right of a panel, for its legend.
const LEGEND: u32 = 230;
/// Above so many bars in a panel their values would overlap.
const LABELLED_BARS: usize = 18;
/// A scale is logarithmic if its values are further apart than this factor.
const LINEAR_SPAN: f64 = 100.0;

const BACKGROUND: RGBColor = WHITE;
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);

/// Okabe and Ito, "Color Universal Design" (2008).
const PALETTE: [RGBColor; 8] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0xf0, 0xe4, 0x42),
    RGBColor(0x77, 0x77, 0x77),
];

/// What a panel's axis counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Throughput,
    Rate,
    Latency,
    Memory,
}

impl Unit {
    const ALL: [Unit; 4] = [Unit::Throughput, Unit::Rate, Unit::Latency, Unit::Memory];

    fn title(self) -> &'static str {
        match self {
            Unit::Throughput => "throughput, MiB/s",
            Unit::Rate => "operations per second",
            Unit::Latency => "latency",
            Unit::Memory => "memory, MiB",
        }
    }

    /// A value on the axis or at a bar.
    fn show(self, value: f64) -> String {
        let short = |value: f64| match value.abs() {
            size if size >= 100.0 || size == 0.0 => format!("{value:.0}"),
            size if size >= 10.0 => format!("{value:.1}").trim_end_matches(".0").to_owned(),
            _ => format!("{value:.2}").trim_end_matches('0').trim_end_matches('.').to_owned(),
        };
        match self {
            Unit::Latency if value >= 1e6 => format!("{} s", short(value / 1e6)),
            Unit::Latency if value >= 1e3 => format!("{} ms", short(value / 1e3)),
            Unit::Latency => format!("{} µs", short(value)),
            _ if value >= 1e6 => format!("{} M", short(value / 1e6)),
            _ if value >= 1e4 => format!("{} k", short(value / 1e3)),
            _ => short(value),
        }
    }
}

/// The name and the unit of a figure, if it belongs in a drawing.
fn describe(figure: &str) -> Option<(String, Unit)> {
    let known = match figure {
        "iops" | "ops_s" => ("operations", Unit::Rate),
        "files_s" => ("files made durable", Unit::Rate),
        "commits_s" => ("commits", Unit::Rate),
        "creates_s" => ("files created and unlinked", Unit::Rate),
        "deletes_s" => ("large files unlinked", Unit::Rate),
        "create_first_s" => ("creates, first tenth", Unit::Rate),
        "create_last_s" => ("creates, last tenth", Unit::Rate),
        "stat_s" => ("stats", Unit::Rate),
        "delete_s" => ("deletes", Unit::Rate),
        "open_us" => ("opening the volume", Unit::Latency),
        "rss_max_mib" => ("most resident memory", Unit::Memory),
        "read_mib_s" => ("reads", Unit::Throughput),
        "write_mib_s" => ("writes", Unit::Throughput),
        _ => return describe_family(figure),
    };
    Some((known.0.to_owned(), known.1))
}

/// Throughputs, rates and latencies: the name says of what.
fn describe_family(figure: &str) -> Option<(String, Unit)> {
    if let Some(what) = figure.strip_suffix("_mib_s") {
        return Some((what.replace('_', " "), Unit::Throughput));
    }
    if let Some(phase) = figure.strip_prefix("iops_") {
        return Some((format!("operations, {phase}"), Unit::Rate));
    }
    let stem = figure.strip_suffix("_us")?;
    let (what, statistic) = stem.rsplit_once('_').unwrap_or(("", stem));
    let statistic = match statistic {
        "p50" => "median",
        "p99" => "99th percentile",
        "p999" => "99.9th percentile",
        "max" => "longest",
        _ => return None,
    };
    let what = what.replace('_', " ");
    Some((if what.is_empty() { statistic.to_owned() } else { format!("{what}: {statistic}") }, Unit::Latency))
}

/// A series: the figure and the name that people read.
struct Series {
    figure: String,
    name: String,
}

/// Figures that share a scale.
struct Panel {
    title: String,
    unit: Unit,
    series: Vec<Series>,
    logarithmic: bool,
}

impl Panel {
    /// The figures of one unit that any engine has.
    fn of(unit: Unit, report: &Report, rows: &[&Row]) -> Option<Panel> {
        let mut series: Vec<Series> = Vec::new();
        for (figure, _) in rows.iter().flat_map(|row| &row.figures.0) {
            match describe(figure) {
                Some((name, of)) if of == unit && series.iter().all(|known| known.figure != *figure) => {
                    series.push(Series { figure: figure.clone(), name });
                }
                _ => {}
            }
        }
        let values = || {
            let value = |row: &&Row| -> Vec<f64> {
                series.iter().filter_map(|series| row.figures.get(&series.figure)).collect()
            };
            rows.iter().flat_map(value).filter(|&value| value > 0.0)
        };
        let (least, most) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
        let logarithmic = most > least * LINEAR_SPAN || unit == Unit::Latency;
        let scale = if logarithmic { ", logarithmic scale" } else { "" };
        let title = format!("{}: {}{scale}", report.workload, unit.title());
        (!series.is_empty()).then_some(Panel { title, unit, series, logarithmic })
    }
}

/// Draws the engines that have figures.
pub fn draw(report: &Report, path: &Path) -> Outcome {
    let rows: Vec<&Row> = report.rows.iter().filter(|row| row.status == Status::Ok).collect();
    let panels: Vec<Panel> =
        Unit::ALL.into_iter().filter_map(|unit| Panel::of(unit, report, &rows)).collect();
    let height = PANEL * (panels.len() as u32).max(1);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        let drawn = draw_all(&area, &panels, &rows).and_then(|()| area.present().map_err(|e| e.to_string()));
        drawn.map_err(|error| failed(format!("drawing: {error}")))?;
    }
    std::fs::write(path, svg).map_err(crate::outcome::os(format!("writing {}", path.display())))?;
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw_all(area: &Area<'_>, panels: &[Panel], rows: &[&Row]) -> Result<(), String> {
    area.fill(&BACKGROUND).map_err(|error| error.to_string())?;
    if panels.is_empty() {
        let text = Text::new("no engine has figures", (20, 20), ("sans-serif", 16).into_font().color(&INK));
        return area.draw(&text).map_err(|error| error.to_string());
    }
    for (panel, part) in panels.iter().zip(area.split_evenly((panels.len(), 1))) {
        let (bars, legend) = part.split_horizontally(WIDTH - LEGEND);
        draw_bars(&bars, panel, rows)
            .and_then(|()| draw_legend(&legend, panel))
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn color(n: usize) -> RGBColor {
    PALETTE[n % PALETTE.len()]
}

fn draw_bars(area: &Area<'_>, panel: &Panel, rows: &[&Row]) -> Result<(), Box<dyn std::error::Error>> {
    let values: Vec<f64> = rows
        .iter()
        .flat_map(|row| panel.series.iter().filter_map(|series| row.figures.get(&series.figure)))
        .filter(|&value| value > 0.0)
        .collect();
    // A logarithmic axis is one of exponents, labelled with the values.
    let least = values.iter().copied().fold(f64::INFINITY, f64::min).min(1e9);
    let floor = if panel.logarithmic { least.log10().floor() } else { 0.0 };
    let scale = |value: f64| match panel.logarithmic {
        true => value.max(10f64.powf(floor)).log10(),
        false => value,
    };
    let most = values.iter().copied().map(scale).fold(floor, f64::max);
    let top = floor + ((most - floor) * 1.1).max(if panel.logarithmic { 1.0 } else { 1e-6 });
    let ink = |size: u32| ("sans-serif", size).into_font().color(&INK);
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ink(18))
        .margin(8)
        .x_label_area_size(28)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..rows.len().max(1) as f64, floor..top)?;
    let engine = |at: &f64| {
        let is_center = (at.fract() - 0.5).abs() < 1e-6;
        rows.get(at.floor() as usize).filter(|_| is_center).map_or(String::new(), |row| row.engine.clone())
    };
    let label = |value: &f64| match panel.logarithmic {
        true if (value - value.round()).abs() > 1e-6 => String::new(),
        true => panel.unit.show(10f64.powf(*value)),
        false => panel.unit.show(*value),
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(INK)
        .x_labels(2 * rows.len() + 1)
        .x_label_formatter(&engine)
        .x_label_style(ink(13))
        .y_label_formatter(&label)
        .y_label_style(ink(12))
        .draw()?;
    let width = 0.84 / panel.series.len() as f64;
    let has_labels = panel.series.len() * rows.len() <= LABELLED_BARS;
    for (n, series) in panel.series.iter().enumerate() {
        for (at, row) in rows.iter().enumerate() {
            let Some(value) = row.figures.get(&series.figure) else { continue };
            let left = at as f64 + 0.08 + n as f64 * width;
            let corners = [(left, floor), (left + width * 0.92, scale(value))];
            chart.draw_series([
                Rectangle::new(corners, color(n).filled()),
                Rectangle::new(corners, INK.stroke_width(1)),
            ])?;
            if has_labels {
                let style = ink(10).pos(Pos::new(HPos::Center, VPos::Bottom));
                let place = (left + width * 0.46, scale(value) + (top - floor) * 0.01);
                chart.draw_series([Text::new(panel.unit.show(value), place, style)])?;
            }
        }
    }
    Ok(())
}

/// A sample of each series' colour with its name, from top to bottom as the bars stand from left to right.
fn draw_legend(area: &Area<'_>, panel: &Panel) -> Result<(), Box<dyn std::error::Error>> {
    for (n, series) in panel.series.iter().enumerate() {
        let top = 44 + 22 * n as i32;
        let sample = [(6, top), (20, top + 14)];
        area.draw(&Rectangle::new(sample, color(n).filled()))?;
        area.draw(&Rectangle::new(sample, INK.stroke_width(1)))?;
        let style = ("sans-serif", 13).into_font().color(&INK).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw(&Text::new(series.name.clone(), (28, top + 7), style))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Figures;
    use serde_json::Map;

    #[test]
    fn figures_have_names_that_people_read() {
        for (figure, name) in [
            ("iops", "operations"),
            ("bulk_mib_s", "bulk"),
            ("iops_after", "operations, after"),
            ("read_p999_us", "read: 99.9th percentile"),
            ("append_fsync_max_us", "append fsync: longest"),
            ("p50_us", "median"),
        ] {
            assert_eq!(describe(figure).map(|(name, _)| name).as_deref(), Some(name));
        }
        assert!(describe("write_amplification").is_none() && describe("odd_us").is_none());
        for (value, text) in [(2.5, "2.5 µs"), (1500.0, "1.5 ms"), (2e6, "2 s"), (0.0, "0 µs")] {
            assert_eq!(Unit::Latency.show(value), text);
        }
        assert_eq!((Unit::Rate.show(123_456.0), Unit::Rate.show(950.0)), ("123 k".into(), "950".into()));
    }

    /// A legend without colour samples had names that belonged to no bar: each series' colour appears in its
    /// bars and once more beside its name, and the page behind the drawing does not show through.
    #[test]
    fn a_legend_shows_the_colour_of_each_series() {
        let row = |engine: &str, scale: f64| {
            let mut figures = Figures::default();
            for (n, name) in ["idle_p50_us", "idle_p99_us", "p50_us", "p99_us", "max_us"].iter().enumerate() {
                figures.push(*name, scale * 10f64.powi(n as i32));
            }
            Row { engine: engine.into(), status: Status::Ok, figures, rounds: Vec::new() }
        };
        let report = Report {
            workload: "tail".into(),
            params: Map::new(),
            machine: Map::new(),
            rows: vec![row("quire", 100.0), row("xfs", 300.0)],
            headline: "ops_s",
        };
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("out.svg");
        draw(&report, &file).unwrap();
        let svg = std::fs::read_to_string(&file).unwrap();
        assert!(svg.contains("idle: median") && svg.contains("longest") && !svg.contains("p50_us"));
        for n in 0..5 {
            let RGBColor(red, green, blue) = color(n);
            let code = format!("#{red:02X}{green:02X}{blue:02X}");
            let count = svg.matches(&code).count();
            assert_eq!(count, 3, "{code}: a bar for each engine and a sample");
        }
        assert!(
            svg.contains(&format!("width=\"{WIDTH}\" height=\"{PANEL}\" opacity=\"1\" fill=\"#FFFFFF\""))
        );
    }
}
