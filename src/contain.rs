//! Panics of other people's code, kept where they happen.
//!
//! Our own code has none that data can reach. Libraries that read files from strangers do, and one of them must not end
//! the program: a call to such a library goes through [`contained`].

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
};

thread_local! {
    /// Whether a panic on this thread is expected, and caught.
    static IS_CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`; gives what it panicked with, if it did.
///
/// # Errors
/// The payload of the panic.
pub fn contained<T>(work: impl FnOnce() -> T) -> std::thread::Result<T> {
    let before = IS_CONTAINED.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    IS_CONTAINED.set(before);
    outcome
}

/// Lets only those panics be printed that nobody catches by [`contained`].
pub fn quieten() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !IS_CONTAINED.get() {
            print(info);
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_stays_within() {
        assert_eq!(contained(|| 3).ok(), Some(3));
        let outcome = contained(|| -> u8 { panic!("x") });
        assert!(outcome.is_err());
        assert!(!IS_CONTAINED.get());
    }
}
