//! Roles of people in an organisation, and what each role may do. No other file decides that.
//!
//! This file must not depend on a database or a page.

/// Role of a person in an organisation. In their own account, a person is the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrganisationRole {
    /// May do everything. An organisation has at least one.
    Owner,
    /// Manages members other than owners, and all keys.
    Admin,
    /// Manages the money, and has no keys.
    Billing,
    /// Has keys, and sees only what these spend.
    Member,
}

/// What pages do in an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberAction {
    /// Create keys, and use, change and revoke one's own.
    UseKeys,
    /// Change and revoke the keys of all members.
    ManageKeys,
    /// See the balance, and the usage of all members.
    SeeUsage,
    /// Set the webhook, to which alerts go, and send its messages again.
    ManageWebhook,
    /// Buy credits, redeem codes and read statements.
    ManageMoney,
    /// Invite members, change their roles and remove them.
    ManageMembers,
}

impl OrganisationRole {
    pub const ALL: [Self; 4] = [Self::Owner, Self::Admin, Self::Billing, Self::Member];

    pub fn name(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Admin => "admin",
            Self::Billing => "billing",
            Self::Member => "member",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    /// Returns whether the role allows the action.
    pub fn may(self, action: MemberAction) -> bool {
        use MemberAction::{
            ManageKeys, ManageMembers, ManageMoney, ManageWebhook, SeeUsage, UseKeys,
        };
        match self {
            Self::Owner => true,
            Self::Admin => matches!(
                action,
                UseKeys | ManageKeys | SeeUsage | ManageMembers | ManageWebhook
            ),
            Self::Billing => matches!(action, SeeUsage | ManageMoney),
            Self::Member => matches!(action, UseKeys),
        }
    }

    /// Returns whether the role allows giving a person the role `to` who has the role `from`.
    /// `None`: the person is no member. Only owners make owners and change them.
    pub fn may_change(self, from: Option<Self>, to: Option<Self>) -> bool {
        let concerns_owner = [from, to].contains(&Some(Self::Owner));
        self.may(MemberAction::ManageMembers) && (self == Self::Owner || !concerns_owner)
    }
}

#[cfg(test)]
mod tests {
    use super::MemberAction::{
        ManageKeys, ManageMembers, ManageMoney, ManageWebhook, SeeUsage, UseKeys,
    };
    use super::OrganisationRole::{Admin, Billing, Member, Owner};
    use super::*;

    #[test]
    fn each_role_may_do_what_the_table_says() {
        let table = [
            (UseKeys, [true, true, false, true]),
            (ManageKeys, [true, true, false, false]),
            (SeeUsage, [true, true, true, false]),
            (ManageWebhook, [true, true, false, false]),
            (ManageMoney, [true, false, true, false]),
            (ManageMembers, [true, true, false, false]),
        ];
        for (action, expected) in table {
            assert_eq!(
                OrganisationRole::ALL.map(|role| role.may(action)),
                expected,
                "{action:?}"
            );
        }
    }

    #[test]
    fn only_owners_make_owners_and_change_them() {
        let changes = [
            (None, Some(Member)),
            (Some(Member), Some(Admin)),
            (Some(Admin), None),
            (None, Some(Owner)),
            (Some(Owner), Some(Member)),
            (Some(Owner), None),
        ];
        let may = |role: OrganisationRole| changes.map(|(from, to)| role.may_change(from, to));
        assert_eq!(may(Owner), [true; 6]);
        assert_eq!(may(Admin), [true, true, true, false, false, false]);
        assert_eq!([may(Billing), may(Member)], [[false; 6]; 2]);
    }
}
