//! The table: engines as rows, figures as columns, the ratio to the first engine that has figures.
//!
//! Percentiles of one latency share a column, so that a line stays readable.

use super::{Report, Row, Status};
use std::fmt::Write;

/// A column: its heading, and the figures that it joins.
struct Column {
    heading: String,
    figures: Vec<String>,
}

/// `read_p50_us` is (`read`, `p50`); `p50_us` is (``, `p50`).
fn percentile(name: &str) -> Option<(&str, &str)> {
    let stem = name.strip_suffix("_us")?;
    let (side, what) = stem.rsplit_once('_').unwrap_or(("", stem));
    (what.starts_with('p') || what == "max").then_some((side, what))
}

fn columns(rows: &[Row]) -> Vec<Column> {
    let mut columns: Vec<Column> = Vec::new();
    for (name, _) in rows.iter().flat_map(|row| &row.figures.0) {
        if columns.iter().any(|column| column.figures.contains(name)) {
            continue;
        }
        let side = percentile(name).map(|(side, _)| side);
        let same = columns
            .iter_mut()
            .find(|column| side.is_some() && percentile(&column.figures[0]).map(|(side, _)| side) == side);
        match (same, percentile(name)) {
            (Some(column), Some((_, what))) => {
                column.heading = format!("{}/{what}", column.heading);
                column.figures.push(name.clone());
            }
            (_, Some((side, what))) => {
                let heading =
                    if side.is_empty() { format!("us: {what}") } else { format!("{side} us: {what}") };
                columns.push(Column { heading, figures: vec![name.clone()] });
            }
            (_, None) => columns.push(Column { heading: name.clone(), figures: vec![name.clone()] }),
        }
    }
    columns
}

/// Three digits that matter.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || value == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn cell(row: &Row, column: &Column) -> String {
    let values: Vec<String> =
        column.figures.iter().map(|name| row.figures.get(name).map_or("-".into(), number)).collect();
    if values.iter().all(|value| value == "-") { "-".into() } else { values.join("/") }
}

/// Lines of cells, padded to columns; the first to the left, others to the right.
pub fn align(lines: &[Vec<String>]) -> String {
    let count = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |n: usize| lines.iter().filter_map(|line| line.get(n)).map(|c| c.chars().count()).max();
    let widths: Vec<usize> = (0..count).map(|n| width(n).unwrap_or(0)).collect();
    let mut text = String::new();
    for line in lines {
        for (n, cell) in line.iter().enumerate() {
            let pad = widths[n].saturating_sub(cell.chars().count());
            let _ = match n {
                0 => write!(text, "{cell}{:pad$}", ""),
                _ => write!(text, "  {:pad$}{cell}", ""),
            };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

/// The table as text, rows without figures below it with their reason.
pub fn render(report: &Report) -> String {
    let columns = columns(&report.rows);
    let base = report.rows.iter().find_map(|row| row.figures.get(report.headline));
    let mut heading = vec!["engine".to_owned()];
    heading.extend(columns.iter().map(|column| column.heading.clone()));
    heading.push("ratio".into());
    let mut lines = vec![heading];
    for row in report.rows.iter().filter(|row| row.status == Status::Ok) {
        let mut line = vec![row.engine.clone()];
        line.extend(columns.iter().map(|column| cell(row, column)));
        line.push(match (row.figures.get(report.headline), base) {
            (Some(value), Some(base)) if base > 0.0 => format!("{:.3}", value / base),
            _ => "-".into(),
        });
        lines.push(line);
    }
    let mut text = if lines.len() > 1 { align(&lines) } else { String::new() };
    for row in &report.rows {
        let _ = match &row.status {
            Status::Ok => Ok(()),
            Status::Skipped(why) => writeln!(text, "{}: skipped: {why}", row.engine),
            Status::Failed(why) => writeln!(text, "{}: failed: {why}", row.engine),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Figures;
    use serde_json::Map;

    #[test]
    fn percentiles_share_a_column() {
        let mut figures = Figures::default();
        for (name, value) in [("ops_s", 200.0), ("p50_us", 1.5), ("p99_us", 22.25), ("lone_p50_us", 3.0)] {
            figures.push(name, value);
        }
        let row = |engine: &str, status, figures| Row {
            engine: engine.into(),
            status,
            figures,
            rounds: Vec::new(),
        };
        let mut half = Figures::default();
        half.push("ops_s", 100.0);
        let report = Report {
            workload: "append".into(),
            params: Map::new(),
            machine: Map::new(),
            rows: vec![
                row("quire", Status::Ok, figures),
                row("x", Status::Ok, half),
                row("xfs", Status::Skipped("no root".into()), Figures::default()),
            ],
            headline: "ops_s",
        };
        let lines: Vec<String> = render(&report).lines().map(str::to_owned).collect();
        assert_eq!(
            lines,
            [
                "engine  ops_s  us: p50/p99  lone us: p50  ratio",
                "quire     200    1.50/22.2          3.00  1.000",
                "x         100            -             -  0.500",
                "xfs: skipped: no root",
            ]
        );
    }
}
