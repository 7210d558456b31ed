//! The live view on a terminal.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::widgets::{Block, Gauge, Paragraph, Sparkline};

use super::Source;
use super::view::View;
use crate::exit::{Failure, Outcome};

/// Readings that the curves go back.
const HISTORY: usize = 240;

/// Throughput of the past, oldest first, in KiB a second.
#[derive(Default)]
struct History {
    reads: VecDeque<u64>,
    writes: VecDeque<u64>,
}

impl History {
    fn push(&mut self, view: &View) {
        for (curve, work) in [(&mut self.reads, &view.works[0]), (&mut self.writes, &view.works[1])] {
            curve.push_back(work.bytes_per_second as u64 >> 10);
            if curve.len() > HISTORY {
                curve.pop_front();
            }
        }
    }
}

/// Draws until told to stop; the terminal is as before then, after an error as well.
pub fn show(source: &mut Source, interval: Duration) -> Outcome {
    let mut terminal =
        ratatui::try_init().map_err(|error| Failure::system("preparing the terminal", &error))?;
    let outcome = draw_until_stopped(source, interval, &mut terminal);
    ratatui::restore();
    outcome
}

fn draw_until_stopped(
    source: &mut Source,
    interval: Duration,
    terminal: &mut ratatui::DefaultTerminal,
) -> Outcome {
    let using = |error: std::io::Error| Failure::system("using the terminal", &error);
    let mut history = History::default();
    let mut view: Option<View> = None;
    let mut next = Instant::now() + interval.min(Duration::from_millis(300));
    loop {
        terminal.draw(|frame| draw(frame, source, view.as_ref(), &history)).map_err(using)?;
        let left = next.saturating_duration_since(Instant::now());
        if event::poll(left).map_err(using)? {
            if is_the_end(&event::read().map_err(using)?) {
                return Ok(());
            }
            continue;
        }
        next = Instant::now() + interval;
        let mut latest = source.next()?;
        latest.name_files(&source.dir);
        history.push(&latest);
        view = Some(latest);
    }
}

fn is_the_end(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    let control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press
        && (control_c || matches!(key.code, KeyCode::Char('q' | 'Q') | KeyCode::Esc))
}

fn draw(frame: &mut Frame<'_>, source: &Source, view: Option<&View>, history: &History) {
    let title = format!(" {} - q quits ", source.dir.display());
    let Some(view) = view else {
        frame
            .render_widget(Paragraph::new("reading ...").block(Block::bordered().title(title)), frame.area());
        return;
    };
    let (cache_lines, journal_lines) = (view.cache_lines(), view.journal_lines());
    let [curves, works, cache, journal, files] = Layout::vertical([
        Constraint::Length(5),
        Constraint::Length(7),
        // With the borders, and the bar above.
        Constraint::Length(cache_lines.len() as u16 + 3),
        Constraint::Length(journal_lines.len() as u16 + 2),
        Constraint::Min(3),
    ])
    .areas(frame.area());
    let [reads, writes] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(curves);
    curve(frame, reads, &format!("{title}- read "), &history.reads, Color::Green);
    curve(frame, writes, " written ", &history.writes, Color::Yellow);
    lines(frame, works, " requests ", &view.work_lines());
    let block = Block::bordered().title(" cache ");
    let inner = block.inner(cache);
    frame.render_widget(block, cache);
    let [bar, rest] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(inner);
    let dirty = (view.dirty / view.cache_limit.max(1.0)).clamp(0.0, 1.0);
    let used = Gauge::default().gauge_style(Style::new().fg(Color::Blue));
    let label = format!("dirty {:.0} % of the cache", dirty * 100.0);
    frame.render_widget(used.ratio(dirty).label(label), bar);
    frame.render_widget(Paragraph::new(cache_lines.join("\n")), rest);
    lines(frame, journal, " journal ", &journal_lines);
    lines(frame, files, " busiest files ", &view.file_lines());
}

fn lines(frame: &mut Frame<'_>, area: Rect, title: &str, lines: &[String]) {
    frame.render_widget(Paragraph::new(lines.join("\n")).block(Block::bordered().title(title)), area);
}

fn curve(frame: &mut Frame<'_>, area: Rect, title: &str, values: &VecDeque<u64>, colour: Color) {
    // The latest stands at the right.
    let width = usize::from(area.width.saturating_sub(2));
    let data: Vec<u64> = values.iter().skip(values.len().saturating_sub(width)).copied().collect();
    let line = Sparkline::default().data(data).style(Style::new().fg(colour));
    frame.render_widget(line.block(Block::bordered().title(title)), area);
}
