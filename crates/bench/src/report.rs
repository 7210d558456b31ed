//! What comes out of a run: results of engines, as a table, as JSON, as a drawing.

pub mod machine;
pub mod plot;
pub mod table;

use crate::sample::Figures;
use serde_json::{Map, Value, json};

/// How an engine fared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// It has figures.
    Ok,
    /// It cannot be had here, and why.
    Skipped(String),
    /// It should have worked, and what happened.
    Failed(String),
}

/// One engine's result.
#[derive(Clone, Debug)]
pub struct Row {
    /// As in the list of engines.
    pub engine: String,
    /// How it fared.
    pub status: Status,
    /// All rounds together; empty unless `Ok`.
    pub figures: Figures,
    /// Each round.
    pub rounds: Vec<Figures>,
}

/// A whole run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Name of the workload.
    pub workload: String,
    /// Its options.
    pub params: Map<String, Value>,
    /// Where it ran.
    pub machine: Map<String, Value>,
    /// In the order of the list.
    pub rows: Vec<Row>,
    /// The figure that engines are compared by.
    pub headline: &'static str,
}

impl Report {
    /// The JSON that measurements rely on.
    pub fn json(&self) -> Value {
        json!({
            "workload": self.workload,
            "params": self.params,
            "machine": self.machine,
            "results": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
        })
    }

    /// Whether an engine failed that should have worked.
    pub fn has_failed(&self) -> bool {
        self.rows.iter().any(|row| matches!(row.status, Status::Failed(_)))
    }
}

impl Row {
    fn json(&self) -> Value {
        let mut object = Map::new();
        object.insert("engine".into(), json!(self.engine));
        let (status, why) = match &self.status {
            Status::Ok => ("ok", None),
            Status::Skipped(why) => ("skipped", Some(why)),
            Status::Failed(why) => ("failed", Some(why)),
        };
        object.insert("status".into(), json!(status));
        if let Some(why) = why {
            object.insert("why".into(), json!(why));
        }
        self.figures.into_json(&mut object);
        if self.rounds.len() > 1 {
            let rounds = self.rounds.iter().map(|figures| {
                let mut round = Map::new();
                figures.into_json(&mut round);
                Value::Object(round)
            });
            object.insert("rounds".into(), rounds.collect());
        }
        Value::Object(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_of_the_json() {
        let row = |status, figures: Figures| Row { engine: "x".into(), status, figures, rounds: Vec::new() };
        let mut figures = Figures::default();
        figures.push("ops_s", 2.5);
        let report = Report {
            workload: "creat".into(),
            params: Map::new(),
            machine: Map::new(),
            rows: vec![row(Status::Ok, figures), row(Status::Skipped("no root".into()), Figures::default())],
            headline: "ops_s",
        };
        assert_eq!(
            report.json(),
            json!({"workload": "creat", "params": {}, "machine": {}, "results": [
                {"engine": "x", "status": "ok", "ops_s": 2.5},
                {"engine": "x", "status": "skipped", "why": "no root"},
            ]})
        );
        assert!(!report.has_failed());
    }
}
