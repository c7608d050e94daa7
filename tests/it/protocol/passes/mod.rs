//! What passes decide and write, whatever else is in them, and whatever has become of the log meanwhile.

mod grown;
mod histories;
mod pairs;
mod tails;
