//! Computes the spending of the last 30 days by day and by model, for the overview. All times are
//! UTC, and the page says so.
//!
//! This file must not read the ledger: the caller passes hourly totals.

use super::colours::{OTHERS_COLOUR, assign_colours};
use crate::billing::activity::SpendTotals;
use crate::sidecar::display::{Credits, group_digits, percent};
use base::clock::rfc3339;
use credits::money::Micro;
use ledger::{HOUR_MS, HourlySpend};

/// Maximum number of chart series with their own colour. All others share one more series.
pub const MAX_CHART_SERIES: usize = 7;

/// Number of days on the charts, including today.
const CHART_DAYS: i64 = 30;

const DAY_HOURS: i64 = 24;

/// Spending of the last `CHART_DAYS` days.
pub struct MonthlySpending {
    /// Models in descending order of cost. Each is a column of `days`.
    pub models: Vec<ModelSpending>,
    /// Days in ascending order, from the first day of use on, including days without spending.
    pub days: Vec<DailySpending>,
    /// Number of days of which the first use counts.
    pub span_days: i64,
    pub total: Credits,
    pub is_empty: bool,
}

pub struct ModelSpending {
    pub model: String,
    pub credits: Credits,
    pub responses: String,
    pub tokens_in: String,
    /// Percentage of the input that came from a cache.
    pub cached_percent: u64,
    pub tokens_out: String,
    pub percent: u64,
    /// Number of the model's colour, starting at 1.
    pub colour: usize,
}

pub struct DailySpending {
    pub date: String,
    /// Seconds since 1970, for the axis of the chart.
    pub at_s: i64,
    pub credits: Vec<Credits>,
    pub total: Credits,
}

impl MonthlySpending {
    /// Returns the credits per day as an SVG path in a box 100 wide and 30 high. `None` before the
    /// second day.
    pub fn sparkline(&self) -> Option<String> {
        let micro = |day: &DailySpending| day.total.0.or_zero().get().unsigned_abs();
        let last = self.days.len().checked_sub(1).filter(|last| *last > 0)?;
        let highest = self.days.iter().map(micro).max()?;
        let points = self.days.iter().enumerate().map(|(index, day)| {
            let y = 28 - percent(micro(day), highest) * 26 / 100;
            format!("{} {y}", index * 100 / last)
        });
        Some(format!("M{}", points.collect::<Vec<_>>().join("L")))
    }
}

/// Returns the first hour of the period of `CHART_DAYS` days that ends today.
pub fn first_hour_of_month(now_ms: i64) -> i64 {
    (now_ms.div_euclid(HOUR_MS * DAY_HOURS) - (CHART_DAYS - 1)).saturating_mul(DAY_HOURS)
}

/// Adds up the spending by day and model. The `order` contains the models of the catalog, whose
/// positions determine the colours.
pub fn monthly_spending(spent: &[HourlySpend], order: &[&str], now_ms: i64) -> MonthlySpending {
    let mut sums: Vec<(String, SpendTotals)> = Vec::new();
    for HourlySpend { model, sum, .. } in spent {
        match sums.iter_mut().find(|(name, _)| name == model) {
            Some((_, all)) => *all = all.plus(*sum),
            None => sums.push((model.clone(), *sum)),
        }
    }
    sums.sort_by(|(a_name, a), (b_name, b)| {
        b.credits.cmp(&a.credits).then_with(|| a_name.cmp(b_name))
    });
    let others = sums.split_off(sums.len().min(MAX_CHART_SERIES));
    let names: Vec<_> = sums.iter().map(|(name, _)| name.as_str()).collect();
    let colours = assign_colours(&names, order);
    if !others.is_empty() {
        let all = others
            .iter()
            .fold(SpendTotals::default(), |all, (_, sum)| all.plus(*sum));
        sums.push((format!("{} others", others.len()), all));
    }
    let total = sums
        .iter()
        .fold(Micro::ZERO, |total, (_, sum)| total.plus(sum.credits));
    let column = |model: &str| {
        sums.iter()
            .position(|(name, _)| name == model)
            .unwrap_or(MAX_CHART_SERIES)
    };
    let month = first_hour_of_month(now_ms) / DAY_HOURS;
    let end_day = month + CHART_DAYS;
    let first_use = spent.iter().map(|spent| spent.hour / DAY_HOURS).min();
    let first_day = first_use.unwrap_or(end_day).max(month);
    let mut days: Vec<_> = (first_day..end_day)
        .map(|day| empty_day(day, sums.len()))
        .collect();
    for HourlySpend { hour, model, sum } in spent {
        let day = usize::try_from(hour / DAY_HOURS - first_day)
            .ok()
            .and_then(|index| days.get_mut(index));
        let Some(day) = day else { continue };
        day.total.0 = day.total.0.plus(sum.credits);
        if let Some(credits) = day.credits.get_mut(column(model)) {
            credits.0 = credits.0.plus(sum.credits);
        }
    }
    let models = sums
        .iter()
        .zip(colours.into_iter().chain([OTHERS_COLOUR]))
        .map(|((model, sum), colour)| model_sum(model, sum, total, colour))
        .collect();
    MonthlySpending {
        models,
        days,
        span_days: CHART_DAYS,
        total: Credits(total),
        is_empty: spent.is_empty(),
    }
}

fn empty_day(day: i64, models: usize) -> DailySpending {
    let at_ms = day.saturating_mul(DAY_HOURS * HOUR_MS);
    let date = rfc3339(at_ms).get(..10).unwrap_or_default().to_owned();
    DailySpending {
        date,
        at_s: at_ms / 1_000,
        credits: vec![Credits::ZERO; models],
        total: Credits::ZERO,
    }
}

fn model_sum(model: &str, sum: &SpendTotals, total: Micro, colour: usize) -> ModelSpending {
    let micro = |amount: Micro| amount.or_zero().get().unsigned_abs();
    ModelSpending {
        model: model.to_owned(),
        credits: Credits(sum.credits),
        responses: group_digits(sum.responses),
        tokens_in: group_digits(sum.input),
        cached_percent: percent(sum.cache_read, sum.input),
        tokens_out: group_digits(sum.output),
        percent: percent(micro(sum.credits), micro(total)),
        colour,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2027-01-15 08:00 UTC.
    const NOW: i64 = 1_800_000_000_000;
    const HOUR: i64 = NOW / HOUR_MS;

    fn spent(hour: i64, model: &str, credits: i64) -> HourlySpend {
        let sum = SpendTotals {
            responses: 1,
            credits: Micro::new(credits * 1_000_000),
            input: 40,
            cache_read: 30,
            output: 5,
        };
        HourlySpend {
            hour,
            model: model.into(),
            sum,
        }
    }

    #[test]
    fn a_month_has_every_day_since_the_first_use_and_the_dearest_models_first() {
        let first = first_hour_of_month(NOW);
        let mut rows = vec![
            spent(first, "a", 1),
            spent(HOUR, "a", 1),
            spent(HOUR, "b", 6),
        ];
        let shown = monthly_spending(&rows, &["b"], NOW);
        assert_eq!(
            (shown.days.len(), shown.total.exact(), shown.is_empty),
            (30, "8".to_owned(), false)
        );
        let models: Vec<_> = shown
            .models
            .iter()
            .map(|sum| (sum.model.as_str(), sum.percent, sum.cached_percent))
            .collect();
        assert_eq!(models, [("b", 75, 75), ("a", 25, 75)]);
        assert_eq!(shown.models[0].colour, 1, "the position in the catalog");
        let sparkline = shown.sparkline().unwrap();
        assert!(
            sparkline.starts_with("M0 25L3 28L") && sparkline.ends_with("L100 2"),
            "{sparkline}"
        );
        let today = monthly_spending(&rows[1..], &[], NOW);
        assert_eq!(today.sparkline(), None, "one day");
        let days: Vec<_> = today.days.iter().map(|day| day.date.as_str()).collect();
        assert_eq!(days, ["2027-01-15"], "no day before the first use");
        let day = |index: usize| {
            (
                shown.days[index].date.as_str(),
                shown.days[index].total.0.get() / 1_000_000,
            )
        };
        assert_eq!(
            (day(0), day(1), day(29)),
            (("2026-12-17", 1), ("2026-12-18", 0), ("2027-01-15", 7))
        );
        // More models than colours: the remaining ones share a column, and no spending is lost.
        rows.extend((0..20).map(|n| spent(HOUR, &format!("m{n:02}"), 1)));
        let shown = monthly_spending(&rows, &["b"], NOW);
        assert_eq!(
            (
                shown.models.len(),
                shown.models[MAX_CHART_SERIES].model.as_str()
            ),
            (MAX_CHART_SERIES + 1, "15 others")
        );
        assert!(shown.days.iter().all(|day| {
            day.credits
                .iter()
                .fold(Micro::ZERO, |sum, one| sum.plus(one.0))
                == day.total.0
        }));
        let none = monthly_spending(&[], &[], NOW);
        assert!(none.is_empty && none.days.is_empty());
    }
}
