//! How many rows the live region has room for: no more than a narrow screen can show.

/// Columns of the narrowest terminal in which the region still fits the rows of the screen.
pub(super) const NARROWEST_SCREEN: usize = 20;

/// Room in the live region.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub(super) rows: usize,
    /// Rows of a screen of [`NARROWEST_SCREEN`] columns.
    pub(super) cost: usize,
}

/// Returns the rows that a row takes on a screen of [`NARROWEST_SCREEN`] columns.
pub(super) fn cost(row: &str) -> usize {
    crate::cli::text::width(row).div_ceil(NARROWEST_SCREEN).max(1)
}

/// Returns how many of the last rows have room. The last one always has, if there may be any.
pub(super) fn fitting(rows: &[String], room: Room) -> usize {
    let mut left = room.cost;
    let mut fits = |row: &&String| {
        let cost = cost(row);
        let fits = cost <= left;
        left = left.saturating_sub(cost);
        fits
    };
    rows.iter().rev().take_while(|row| fits(row)).count().max(1).min(room.rows).min(rows.len())
}
