//! The few values of `/metrics` that `status` shows.

/// A scrape in the Prometheus text format.
pub struct Metrics {
    text: String,
}

impl Metrics {
    pub fn new(text: &[u8]) -> Self {
        Self { text: String::from_utf8_lossy(text).into_owned() }
    }

    /// The series of a metric: labels and value.
    fn series<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        self.text.lines().filter_map(move |line| {
            let rest = line.strip_prefix(name)?;
            let (labels, value) = match rest.strip_prefix('{') {
                Some(rest) => rest.rsplit_once("} ")?,
                None => ("", rest.strip_prefix(' ')?),
            };
            Some((labels, value.split(' ').next()?.parse().ok()?))
        })
    }

    /// The sum of the series that have none of these labels, or nothing without any series.
    pub fn sum_without(&self, name: &str, labels: &[&str]) -> Option<f64> {
        let counted = self.series(name).filter(|(of, _)| !labels.iter().any(|l| of.contains(l)));
        counted.map(|(_, value)| value).reduce(|sum, value| sum + value)
    }

    pub fn sum(&self, name: &str) -> Option<f64> {
        self.sum_without(name, &[])
    }

    /// The value of a label of a metric's first series.
    pub fn label(&self, name: &str, label: &str) -> Option<String> {
        let (labels, _) = self.series(name).next()?;
        let (_, rest) = labels.split_once(&format!("{label}=\""))?;
        Some(rest.split('"').next()?.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_name_and_label() {
        let text = b"# HELP requests_total Requests.\n# TYPE requests_total counter\n\
            requests_total{operation=\"a\",status=\"200\"} 3\n\
            requests_total{operation=\"metrics\",status=\"200\"} 40\n\
            requests_total{operation=\"a }\",status=\"404\"} 1 1395066363000\n\
            requests_total_more 7\nplain 1.5\nbuild_info{version=\"1.2.3\"} 1\n";
        let metrics = Metrics::new(text);
        assert_eq!(metrics.sum("requests_total"), Some(44.0));
        let without = metrics.sum_without("requests_total", &["operation=\"metrics\""]);
        assert_eq!(without, Some(4.0));
        assert_eq!(metrics.sum("plain"), Some(1.5));
        assert_eq!(metrics.sum("absent"), None);
        assert_eq!(metrics.label("build_info", "version").as_deref(), Some("1.2.3"));
        assert_eq!(metrics.label("plain", "version"), None);
    }
}
