//! Removes output limits that are not the surface's: under another vendor's name, or in a vendor's
//! own options.
//!
//! A vendor that applies one of them could generate more than was reserved. It must not touch the
//! surface's own limits.
//!
//! Read next: `request/extensions.rs`, which has the names.

use super::Strip;
use crate::protocol::Protocol;
use crate::protocol::form::Action;
use crate::protocol::request::extensions::Extension;
use crate::protocol::request::vendor_state;
use crate::protocol::scan::Span;
use crate::protocol::tree::Value;

impl<'a> Strip<'a> {
    /// Removes output limits that the vendor might apply instead of the surface's.
    pub(super) fn second_limits(&mut self, root: Value<'a>, protocol: Protocol) {
        let mut places = Vec::new();
        for (key, value) in root.members() {
            match Extension::at_top(protocol, &key.value()) {
                Some(Extension::OutputLimit(name)) => {
                    if !value.is_null() {
                        self.warnings.add(Action::Dropped, name);
                    }
                    places.push((self.member_span(&key, value), true));
                }
                Some(Extension::Options(object)) => {
                    self.limits_in_options(value, object, &mut places)
                }
                _ => {}
            }
        }
        self.remove(&places);
    }

    /// Removes the limits in a vendor's own options, at any depth. `object`: name of the outermost
    /// member.
    fn limits_in_options(
        &mut self,
        value: Value<'a>,
        object: &'static str,
        places: &mut Vec<(Span, bool)>,
    ) {
        for item in value.items() {
            self.limits_in_options(item, object, places);
        }
        for (key, value) in value.members() {
            let name = key.value();
            match Extension::in_options(&name) {
                Some(Extension::OutputLimit(name)) => {
                    if !value.is_null() {
                        self.warnings
                            .add(Action::Dropped, format_args!("{object}.{name}"));
                    }
                    places.push((self.member_span(&key, value), true));
                }
                _ if vendor_state::is_data(&name) && name != "parameters" => {}
                _ => self.limits_in_options(value, object, places),
            }
        }
    }
}
