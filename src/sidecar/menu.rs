//! Defines the navigation as a table with one line per entry, in display order.
//!
//! Account holders and operators have a mode each, with entries of its own. The path of a page
//! decides which mode it belongs to and which entry is current. This file must not depend on a
//! page.

pub struct MenuEntry {
    pub text: &'static str,
    pub path: &'static str,
    /// Name of the entry's icon in `style.css`.
    pub icon: &'static str,
    /// Whether the menu has it.
    shows: fn(ShopParts) -> bool,
}

/// What the gateway offers to get credits by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShopParts {
    /// Account holders can buy credits.
    pub sells: bool,
    /// Account holders can redeem codes.
    pub takes_codes: bool,
}

impl ShopParts {
    pub const NONE: Self = Self {
        sells: false,
        takes_codes: false,
    };

    /// Whether account holders have the page of credits.
    pub fn has_any(self) -> bool {
        self.sells || self.takes_codes
    }
}

/// Entries that belong together. Only some groups have a title.
pub struct MenuGroup {
    pub title: Option<&'static str>,
    pub entries: &'static [MenuEntry],
}

/// A mode of the navigation between which an operator can switch.
pub struct MenuMode {
    pub text: &'static str,
    pub path: &'static str,
}

pub struct Menu {
    pub groups: &'static [MenuGroup],
    /// Modes of the user; empty if there is only one.
    pub modes: &'static [MenuMode],
    /// First page of the mode, to which the product's name links.
    pub home: &'static str,
    /// Path of the current entry.
    current: Option<&'static str>,
    shop: ShopParts,
}

const fn entry(text: &'static str, path: &'static str, icon: &'static str) -> MenuEntry {
    MenuEntry {
        text,
        path,
        icon,
        shows: |_| true,
    }
}

const PUBLIC: &[MenuGroup] = &[MenuGroup {
    title: None,
    entries: &[
        entry("Docs", "/docs", "docs"),
        entry("Dashboard", "/dashboard", "overview"),
    ],
}];

const USE: MenuGroup = MenuGroup {
    title: Some("Use"),
    entries: &[
        entry("Set up", "/dashboard/setup", "setup"),
        entry("Keys", "/dashboard/keys", "keys"),
        entry("Playground", "/dashboard/playground", "playground"),
    ],
};

const WATCH: MenuGroup = MenuGroup {
    title: Some("Watch"),
    entries: &[
        entry("Overview", "/dashboard", "overview"),
        entry("Activity", "/dashboard/activity", "activity"),
        entry("Conversations", "/dashboard/conversations", "conversations"),
    ],
};

const MONEY: MenuGroup = MenuGroup {
    title: Some("Money"),
    entries: &[
        MenuEntry {
            shows: ShopParts::has_any,
            ..entry("Credits", "/dashboard/credits", "credits")
        },
        entry("Spending", "/dashboard/spending", "spending"),
        entry("Statement", "/dashboard/statement", "statement"),
        entry("Alerts", "/dashboard/alerts", "alerts"),
    ],
};

const OWN: MenuGroup = MenuGroup {
    title: None,
    entries: &[
        entry("Account", "/dashboard/account", "account"),
        entry("Docs", "/docs", "docs"),
    ],
};

const HOLDER: &[MenuGroup] = &[USE, WATCH, MONEY, OWN];

const OPERATOR: &[MenuGroup] = &[
    MenuGroup {
        title: Some("Operate"),
        entries: &[
            entry("Overview", OPERATOR_PATH, "overview"),
            entry("Accounts", "/dashboard/operator/accounts", "accounts"),
            MenuEntry {
                shows: |shop| shop.sells,
                ..entry("Payments", "/dashboard/operator/payments", "credits")
            },
            MenuEntry {
                shows: |shop| shop.takes_codes,
                ..entry("Codes", "/dashboard/operator/codes", "keys")
            },
            entry("Invitations", "/dashboard/operator/invites", "invites"),
            entry("Service", "/dashboard/operator/service", "service"),
            entry("Models and prices", "/dashboard/operator/models", "models"),
            entry("Audit log", "/dashboard/operator/audit", "audit"),
        ],
    },
    MenuGroup {
        title: None,
        entries: &[entry("Docs", "/docs", "docs")],
    },
];

/// Path prefix of the operator pages, which is also the path of the first one.
const OPERATOR_PATH: &str = "/dashboard/operator";
/// Path of the first page for account holders.
const HOLDER_PATH: &str = "/dashboard";

pub fn first_path(is_operator: bool) -> &'static str {
    match is_operator {
        true => OPERATOR_PATH,
        false => HOLDER_PATH,
    }
}

const MODES: &[MenuMode] = &[
    MenuMode {
        text: "My account",
        path: HOLDER_PATH,
    },
    MenuMode {
        text: "Operator",
        path: OPERATOR_PATH,
    },
];

impl Menu {
    /// Returns the navigation of a visitor who is not signed in.
    pub fn public(path: &str) -> Self {
        Self::new(PUBLIC, path)
    }

    /// Returns the navigation of a signed-in user for the page at `path`.
    pub fn signed_in(is_operator: bool, shop: ShopParts, path: &str) -> Self {
        let operates = is_operator && is_below(path, OPERATOR_PATH);
        let groups = if operates { OPERATOR } else { HOLDER };
        let modes = if is_operator { MODES } else { &[] };
        Self {
            modes,
            home: first_path(operates),
            shop,
            ..Self::new(groups, path)
        }
    }

    fn new(groups: &'static [MenuGroup], path: &str) -> Self {
        let entries = groups.iter().flat_map(|group| group.entries);
        let current = entries
            .map(|entry| entry.path)
            .filter(|entry| is_below(path, entry))
            // A page without an entry does not belong to the first page of its mode.
            .filter(|entry| ![HOLDER_PATH, OPERATOR_PATH].contains(entry) || path == *entry)
            .max_by_key(|entry| entry.len());
        Self {
            groups,
            modes: &[],
            home: HOLDER_PATH,
            current,
            shop: ShopParts::NONE,
        }
    }

    /// Whether the menu has the entry.
    pub fn shows(&self, entry: &MenuEntry) -> bool {
        (entry.shows)(self.shop)
    }

    pub fn is_of_operators(&self) -> bool {
        self.home == OPERATOR_PATH
    }

    pub fn is_current(&self, entry: &MenuEntry) -> bool {
        self.current == Some(entry.path)
    }

    /// Returns whether the page belongs to the mode.
    pub fn is_in(&self, mode: &MenuMode) -> bool {
        mode.path == self.home
    }
}

fn is_below(path: &str, parent: &str) -> bool {
    let rest = path.strip_prefix(parent);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_a_page_says_its_mode_and_its_entry() {
        for (is_operator, path, current, mode) in [
            (false, "/dashboard", Some("/dashboard"), "My account"),
            (
                false,
                "/dashboard/keys/key_1/revoke",
                Some("/dashboard/keys"),
                "My account",
            ),
            (false, "/dashboard/keysmith", None, "My account"),
            (false, "/dashboard/operator/service", None, "My account"),
            (
                true,
                "/dashboard/operator",
                Some("/dashboard/operator"),
                "Operator",
            ),
            (
                true,
                "/dashboard/operator/accounts/acc_1",
                Some("/dashboard/operator/accounts"),
                "Operator",
            ),
            (true, "/dashboard/operator/search", None, "Operator"),
            (
                true,
                "/dashboard/operator/service",
                Some("/dashboard/operator/service"),
                "Operator",
            ),
            (true, "/docs/clients/curl", Some("/docs"), "My account"),
        ] {
            let menu = Menu::signed_in(is_operator, ShopParts::NONE, path);
            assert_eq!(menu.current, current, "{path}");
            let chosen: Vec<_> = MODES.iter().filter(|mode| menu.is_in(mode)).collect();
            assert_eq!(chosen.len(), 1);
            assert_eq!(chosen[0].text, mode, "{path}");
        }
        assert!(
            Menu::signed_in(false, ShopParts::NONE, "/dashboard")
                .modes
                .is_empty()
        );
    }
}
