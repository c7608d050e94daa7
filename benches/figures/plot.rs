//! The plot: each result relative to its target. Right of the line is better, whether the value
//! should be large or small.

use std::{fmt::Write, path::Path};

use crate::{
    report::{Measured, Outcome},
    rows::Aim,
};

const LEFT: f64 = 430.0;
const WIDTH: f64 = 420.0;
const LINE: f64 = 26.0;
const TOP: f64 = 56.0;
/// The scale is logarithmic, from a quarter of the target to four times.
const OCTAVES: f64 = 2.0;

pub fn write(directory: &Path, table: &[Measured]) -> anyhow::Result<()> {
    let mut lines = String::new();
    let mut count = 0.0;
    for measured in table {
        for figure in measured.row.figures {
            let Outcome { value, met, .. } = measured.outcome(figure)?;
            let reach = |value: f64| match figure.aim {
                Aim::AtLeast(aim) => Some(value / aim),
                Aim::AtMost(aim) => Some(aim / value),
                Aim::None => None,
            };
            let (Some(median), Some(one), Some(other)) =
                (reach(value.median), reach(value.least), reach(value.most))
            else {
                continue;
            };
            let y = TOP + LINE * count;
            let (from, to) = (at(one.min(other)), at(one.max(other)));
            let colour = if met == Some(true) { "#2a7d4f" } else { "#c0392b" };
            let title = escaped(&format!("{}: {}", measured.row.name, figure.title));
            writeln!(
                lines,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{title}</text>\
                 <line x1=\"{from:.1}\" x2=\"{to:.1}\" y1=\"{y}\" y2=\"{y}\" stroke=\"{colour}\" stroke-width=\"3\"/>\
                 <circle cx=\"{:.1}\" cy=\"{y}\" r=\"5\" fill=\"{colour}\"/>\
                 <text x=\"{}\" y=\"{}\">{median:.2}</text>",
                LEFT - 10.0,
                y + 4.0,
                at(median),
                LEFT + WIDTH + 10.0,
                y + 4.0,
            )?;
            count += 1.0;
        }
    }
    let bottom = TOP + LINE * count;
    let mut grid = String::new();
    for (reach, label) in [(0.25, "1/4"), (0.5, "1/2"), (1.0, "target"), (2.0, "2x"), (4.0, "4x")] {
        let x = at(reach);
        let stroke = if reach == 1.0 { "#222" } else { "#ddd" };
        writeln!(
            grid,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{}\" y2=\"{bottom}\" stroke=\"{stroke}\"/>\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
            TOP - LINE / 2.0,
            TOP - LINE / 2.0 - 6.0,
        )?;
    }
    let (width, height) = (LEFT + WIDTH + 70.0, bottom + 10.0);
    let svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"20\" font-size=\"15\">How far each figure reaches its aim: \
         median and range</text>\n{grid}{lines}</svg>\n"
    );
    std::fs::write(directory.join("figures.svg"), svg)?;
    Ok(())
}

fn at(reach: f64) -> f64 {
    let octaves = reach.log2().clamp(-OCTAVES, OCTAVES);
    LEFT + WIDTH * (octaves + OCTAVES) / (2.0 * OCTAVES)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
