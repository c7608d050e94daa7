//! The report: a table for people, and raw results for programs.

use std::{collections::BTreeMap, fmt::Write, path::Path};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::rows::{self, Aim, Figure, Row};

pub struct Measured {
    pub row: &'static Row,
    /// The results of each run and repetition.
    pub results: Vec<Vec<Value>>,
}

/// A median with the smallest and largest value.
#[derive(Clone, Copy)]
pub struct Range {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Range {
    fn of(mut values: Vec<f64>) -> anyhow::Result<Self> {
        ensure!(values.iter().all(|value| value.is_finite()), "not a number: {values:?}");
        values.sort_by(f64::total_cmp);
        let (least, most) = (values.first().copied(), values.last().copied());
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            0 => values.get(middle.saturating_sub(1)..=middle).map(|two| (two[0] + two[1]) / 2.0),
            _ => values.get(middle).copied(),
        };
        let all = median.zip(least).zip(most).context("nothing was measured")?;
        let ((median, least), most) = all;
        Ok(Self { median, least, most })
    }
}

/// A measured figure: the subject, the reference, and the result.
pub struct Outcome {
    pub of: Range,
    pub by: Option<Range>,
    /// The ratio, with the range of the repetitions; or the absolute value.
    pub value: Range,
    pub met: Option<bool>,
}

impl Measured {
    pub fn outcome(&self, figure: &Figure) -> anyhow::Result<Outcome> {
        let of = self.values(&figure.of)?;
        let by = figure.by.as_ref().map(|by| self.values(by)).transpose()?;
        let value = match &by {
            None => Range::of(of.clone())?,
            Some(by) => {
                let each = of.iter().zip(by).map(|(of, by)| of / by).collect();
                let median = Range::of(of.clone())?.median / Range::of(by.clone())?.median;
                Range { median, ..Range::of(each)? }
            }
        };
        let met = match figure.aim {
            Aim::AtLeast(aim) => Some(value.median >= aim),
            Aim::AtMost(aim) => Some(value.median <= aim),
            Aim::None => None,
        };
        Ok(Outcome { of: Range::of(of)?, by: by.map(Range::of).transpose()?, value, met })
    }

    fn values(&self, value: &rows::Value) -> anyhow::Result<Vec<f64>> {
        let &rows::Value(run, pointer) = value;
        let each = self.results[run].iter().map(|result| result.pointer(pointer)?.as_f64());
        let title = self.row.runs[run].title;
        each.collect::<Option<_>>().with_context(|| format!("{title} has no {pointer}"))
    }
}

pub fn write(
    directory: &Path,
    table: &[Measured],
    facts: &BTreeMap<&'static str, Value>,
    short: bool,
    took_s: f64,
) -> anyhow::Result<()> {
    let markdown = markdown(table, facts, short)?;
    print!("\n{markdown}");
    std::fs::create_dir_all(directory)?;
    std::fs::write(directory.join("figures.md"), markdown)?;
    let rows = table.iter().map(raw).collect::<anyhow::Result<Vec<_>>>()?;
    let raw = json!({"machine": facts, "short": short, "took_s": took_s, "rows": rows});
    std::fs::write(directory.join("figures.json"), serde_json::to_string_pretty(&raw)?)?;
    Ok(())
}

fn markdown(
    table: &[Measured],
    facts: &BTreeMap<&'static str, Value>,
    short: bool,
) -> anyhow::Result<String> {
    let mut text = String::new();
    if short {
        text += "A short run: it shows that everything works, and says nothing of speed.\n\n";
    }
    for (name, value) in facts {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        writeln!(text, "- {name}: {value}")?;
    }
    text += "\n| row | figure | measured | divided by | result (range) | target | |\n";
    text += "|---|---|---|---|---|---|---|\n";
    for measured in table {
        for figure in measured.row.figures {
            let Outcome { of, by, value, met } = measured.outcome(figure)?;
            let unit = unit(figure.of.1);
            let value = match by {
                Some(_) => with_range(value, |value| format!("{value:.2}")),
                None => with_range(value, |value| amount(value, unit)),
            };
            let shown = |range: Range| amount(range.median, unit);
            let (of, by) = (shown(of), by.map(shown).unwrap_or_default());
            let aim = match (figure.aim, figure.by.is_some()) {
                (Aim::None, _) => String::new(),
                (Aim::AtLeast(aim), _) => format!(">= {aim}"),
                (Aim::AtMost(aim), true) => format!("<= {aim}"),
                (Aim::AtMost(aim), false) => format!("<= {}", amount(aim, unit)),
            };
            let met = match met {
                Some(true) => "met",
                Some(false) => "**missed**",
                None => "",
            };
            let (name, title) = (measured.row.name, figure.title);
            writeln!(text, "| {name} | {title} | {of} | {by} | {value} | {aim} | {met} |")?;
        }
    }
    Ok(text)
}

fn raw(measured: &Measured) -> anyhow::Result<Value> {
    let runs = measured.row.runs.iter().zip(&measured.results);
    let runs: Vec<Value> =
        runs.map(|(run, results)| json!({"title": run.title, "results": results})).collect();
    let mut figures = Vec::new();
    for figure in measured.row.figures {
        let Outcome { value: Range { median, least, most }, met, .. } = measured.outcome(figure)?;
        let (title, is_ratio) = (figure.title, figure.by.is_some());
        figures.push(json!({"title": title, "is_ratio": is_ratio, "median": median,
            "least": least, "most": most, "met": met}));
    }
    let Row { name, title, slow_flush, .. } = measured.row;
    let about = json!({"name": name, "title": title, "slow_flush": slow_flush});
    Ok(json!({"row": about, "figures": figures, "runs": runs}))
}

/// The unit, by the name of a value.
fn unit(pointer: &str) -> &'static str {
    match pointer {
        _ if pointer.ends_with("_us") => "us",
        _ if pointer.ends_with("_cores") => "cores",
        _ if pointer.ends_with("_bytes") => "bytes",
        rows::DATABASE_TRANSACTIONS => "",
        _ => "/s",
    }
}

pub fn amount(value: f64, unit: &str) -> String {
    match (unit, value) {
        ("us", value) => format!("{:.2} ms", value / 1e3),
        ("cores", value) => format!("{value:.3} cores"),
        ("bytes", value) => format!("{:.1} MB", value / 1e6),
        ("", value) => format!("{value:.2}"),
        (_, value) if value >= 1e6 => format!("{:.2} M/s", value / 1e6),
        (_, value) if value >= 1e4 => format!("{:.1} k/s", value / 1e3),
        (_, value) => format!("{value:.0}/s"),
    }
}

fn with_range(range: Range, show: impl Fn(f64) -> String) -> String {
    format!("{} ({} - {})", show(range.median), show(range.least), show(range.most))
}
