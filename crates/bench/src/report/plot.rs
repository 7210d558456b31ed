//! The drawing: bars of the rates side by side, and below them the latencies on a logarithmic scale.

use super::{Report, Row, Status};
use crate::outcome::{Outcome, failed};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;

const WIDTH: u32 = 960;
const PANEL: u32 = 360;

/// A family of figures that share a scale.
struct Panel {
    title: String,
    figures: Vec<String>,
    logarithmic: bool,
}

fn panels(report: &Report, rows: &[&Row]) -> Vec<Panel> {
    let names: Vec<&String> =
        rows.first().map_or(Vec::new(), |row| row.figures.0.iter().map(|(n, _)| n).collect());
    let of = |keep: &dyn Fn(&str) -> bool| names.iter().filter(|n| keep(n)).map(|n| (*n).clone()).collect();
    let mut panels = vec![Panel {
        title: format!("{}: throughput", report.workload),
        figures: of(&|name| name.ends_with("_mib_s")),
        logarithmic: false,
    }];
    panels.push(Panel {
        title: format!("{}: rate", report.workload),
        figures: of(&|name| {
            name == "iops" || (name.ends_with("_s") && name == report.headline && !name.ends_with("_mib_s"))
        }),
        logarithmic: false,
    });
    panels.push(Panel {
        title: format!("{}: latency, µs", report.workload),
        figures: of(&|name| name.ends_with("_us")),
        logarithmic: true,
    });
    panels.retain(|panel| !panel.figures.is_empty());
    panels
}

/// Draws the engines that have figures.
pub fn draw(report: &Report, path: &Path) -> Outcome {
    let rows: Vec<&Row> = report.rows.iter().filter(|row| row.status == Status::Ok).collect();
    let panels = panels(report, &rows);
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
    area.fill(&WHITE).map_err(|error| error.to_string())?;
    if panels.is_empty() {
        let text = Text::new("no engine has figures", (20, 20), ("sans-serif", 16));
        return area.draw(&text).map_err(|error| error.to_string());
    }
    for (panel, part) in panels.iter().zip(area.split_evenly((panels.len(), 1))) {
        draw_panel(&part, panel, rows).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn draw_panel(area: &Area<'_>, panel: &Panel, rows: &[&Row]) -> Result<(), Box<dyn std::error::Error>> {
    // Latencies span magnitudes: their axis is of exponents, labelled with the values.
    let scale = |value: f64| if panel.logarithmic { value.max(0.1).log10() } else { value };
    let values = rows.iter().flat_map(|row| panel.figures.iter().filter_map(|name| row.figures.get(name)));
    let top = values.map(scale).fold(0.0f64, f64::max) * 1.1 + f64::from(u8::from(panel.logarithmic)) * 0.2;
    let bottom = if panel.logarithmic { -1.0 } else { 0.0 };
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 18))
        .margin(8)
        .margin_right(180)
        .x_label_area_size(28)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..rows.len().max(1) as f64, bottom..top.max(bottom + 1.0))?;
    let engine = |at: &f64| {
        let index = at.floor() as usize;
        let is_center = (at.fract() - 0.5).abs() < 1e-6;
        rows.get(index).filter(|_| is_center).map_or(String::new(), |row| row.engine.clone())
    };
    let label = |value: &f64| {
        if panel.logarithmic { format!("{:.1}", 10f64.powf(*value)) } else { format!("{value:.0}") }
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(2 * rows.len() + 1)
        .x_label_formatter(&engine)
        .y_label_formatter(&label)
        .draw()?;
    let bar = 0.8 / panel.figures.len() as f64;
    for (n, name) in panel.figures.iter().enumerate() {
        let color = Palette99::pick(n).to_rgba();
        let bars = rows.iter().enumerate().filter_map(|(at, row)| {
            let value = scale(row.figures.get(name)?);
            let left = at as f64 + 0.1 + n as f64 * bar;
            Some(Rectangle::new([(left, bottom), (left + bar * 0.95, value)], color.filled()))
        });
        chart
            .draw_series(bars)?
            .label(name.clone())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 10, y + 5)], color.filled()));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::Coordinate(WIDTH as i32 - 250, 10))
        .background_style(WHITE)
        .draw()?;
    Ok(())
}
