//! The expected results: the rules of credit, written a second time in `i128`, without the
//! program's types.
//!
//! It must not share arithmetic or state with the program.

use std::collections::BTreeMap;

/// An amount in µc, by bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    pub paid: i128,
    pub trial: i128,
}

impl Parts {
    pub fn total(self) -> i128 {
        self.paid + self.trial
    }

    /// The part of `amount` that these buckets can pay, the trial first.
    fn take(self, amount: i128) -> Self {
        let trial = amount.min(self.trial.max(0));
        Self {
            trial,
            paid: (amount - trial).min(self.paid.max(0)),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Account {
    /// Credit left after all settled requests, whether or not they are in the ledger.
    pub has: Parts,
    pub trial_ends: Option<i64>,
    pub was_given: bool,
    pub lapsed: bool,
}

#[derive(Clone, Debug)]
pub struct Hold {
    pub account: usize,
    pub parts: Parts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    pub account: usize,
    pub is_debit: bool,
    pub taken: Parts,
    pub writeoff: i128,
    pub refunded: i128,
}

/// The result of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    Held {
        amount: i128,
        limit: u64,
    },
    /// The spend limit of the spender with this place is reached.
    SpendLimit(usize),
    Insufficient,
    TrialExpired,
    TooMany,
    Backlog,
}

#[derive(Clone, Copy, Debug)]
pub struct Ask {
    pub input: u64,
    pub limit: u64,
    pub floor: u64,
    pub exact: bool,
    /// What the spend limits of the key and of the member leave; `None` without a limit.
    pub left: [Option<i128>; 2],
}

/// Prices in µc per million tokens: input, cache read, 5-minute write, 1-hour write, output.
pub type Prices = [i64; 5];

/// Rounded up once. The division is written out, so that no helper is shared.
pub fn cost(tokens: [u64; 5], prices: &Prices) -> i128 {
    let sum: i128 = tokens
        .iter()
        .zip(prices)
        .map(|(tokens, price)| i128::from(*tokens) * i128::from(*price))
        .sum();
    sum / 1_000_000 + i128::from(sum % 1_000_000 != 0)
}

/// The largest limit that is affordable, by binary search. The program uses a division.
fn largest(ask: &Ask, free: i128, price: impl Fn(u64) -> i128) -> Option<u64> {
    let (mut low, mut high) = (0, ask.limit);
    if price(0) > free {
        return None;
    }
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if price(middle) <= free {
            low = middle
        } else {
            high = middle - 1
        }
    }
    (low == ask.limit || !ask.exact && low >= ask.floor && low > 0).then_some(low)
}

#[derive(Default)]
pub struct Model {
    pub accounts: Vec<Account>,
    pub open: BTreeMap<String, Hold>,
    pub ends: BTreeMap<String, End>,
    /// The numbers of the key and of the member of each request.
    pub spenders: BTreeMap<String, [u64; 2]>,
    pub max_open: usize,
    /// Ends that the ledger does not have, as the process counts them.
    pub waiting: usize,
    pub max_waiting: usize,
}

impl Model {
    pub fn held(&self, account: usize) -> Parts {
        let of = self.open.values().filter(|hold| hold.account == account);
        of.fold(Parts::default(), |sum, hold| Parts {
            paid: sum.paid + hold.parts.paid,
            trial: sum.trial + hold.parts.trial,
        })
    }

    /// What the key (place 0) or the member (place 1) with this number has spent.
    pub fn spent(&self, account: usize, place: usize, number: u64) -> i128 {
        let ends = self.ends.iter().filter(|(request, end)| {
            end.account == account && self.spenders[*request][place] == number
        });
        ends.map(|(_, end)| end.taken.total()).sum()
    }

    /// What it has spent, and what its open requests hold.
    pub fn used(&self, account: usize, place: usize, number: u64) -> i128 {
        let open = self.open.iter().filter(|(request, hold)| {
            hold.account == account && self.spenders[*request][place] == number
        });
        self.spent(account, place, number) + open.map(|(_, hold)| hold.parts.total()).sum::<i128>()
    }

    fn runs(&self, account: usize, now: i64) -> bool {
        self.accounts[account]
            .trial_ends
            .is_some_and(|ends| now < ends)
    }

    /// The balance that the program must report for the account.
    pub fn balance(&self, account: usize, now: i64) -> i128 {
        let has = self.accounts[account].has;
        // After its end, only the part of a trial that open holds have reserved counts.
        has.paid
            + if self.runs(account, now) {
                has.trial
            } else {
                has.trial.min(self.held(account).trial)
            }
    }

    pub fn free(&self, account: usize, now: i64) -> Parts {
        let (has, held) = (self.accounts[account].has, self.held(account));
        let trial = if self.runs(account, now) {
            has.trial - held.trial
        } else {
            0
        };
        Parts {
            paid: has.paid - held.paid,
            trial,
        }
    }

    pub fn admission(&self, account: usize, ask: &Ask, prices: &Prices, now: i64) -> Admission {
        if self.waiting >= self.max_waiting {
            return Admission::Backlog;
        }
        if self
            .open
            .values()
            .filter(|hold| hold.account == account)
            .count()
            >= self.max_open
        {
            return Admission::TooMany;
        }
        let price = |limit| cost([ask.input, 0, 0, 0, limit], prices);
        let mut free = self.free(account, now).total();
        for (place, left) in ask.left.into_iter().enumerate() {
            let Some(left) = left else { continue };
            if largest(ask, left, price).is_none() {
                return Admission::SpendLimit(place);
            }
            free = free.min(left);
        }
        match largest(ask, free, price) {
            Some(limit) => Admission::Held {
                amount: price(limit),
                limit,
            },
            None => self.refusal(account, now),
        }
    }

    fn refusal(&self, account: usize, now: i64) -> Admission {
        let account = &self.accounts[account];
        let is_over = account.trial_ends.is_some_and(|ends| now >= ends);
        if is_over && !account.was_given {
            Admission::TrialExpired
        } else {
            Admission::Insufficient
        }
    }

    pub fn hold(&mut self, request: &str, account: usize, amount: i128, now: i64) {
        let parts = self.free(account, now).take(amount);
        assert_eq!(parts.total(), amount);
        self.open
            .insert(request.to_owned(), Hold { account, parts });
    }

    /// Ends a request. Returns the amount that its account pays.
    pub fn end(&mut self, request: &str, cost: i128, is_debit: bool, now: i64) -> i128 {
        let hold = self.open[request].clone();
        let mut taken = hold.parts.take(cost);
        if taken.total() < cost {
            let more = self.free(hold.account, now).take(cost - taken.total());
            taken = Parts {
                paid: taken.paid + more.paid,
                trial: taken.trial + more.trial,
            };
        }
        self.open.remove(request);
        self.waiting += 1;
        let has = &mut self.accounts[hold.account].has;
        *has = Parts {
            paid: has.paid - taken.paid,
            trial: has.trial - taken.trial,
        };
        let writeoff = cost - taken.total();
        let end = End {
            account: hold.account,
            is_debit,
            taken,
            writeoff,
            refunded: 0,
        };
        assert!(self.ends.insert(request.to_owned(), end).is_none());
        taken.total()
    }

    /// Undoes an end whose record was lost in the crash. The process had reported it to nobody.
    pub fn unend(&mut self, request: &str, hold: Hold) {
        let end = self.ends.remove(request).unwrap();
        let has = &mut self.accounts[end.account].has;
        *has = Parts {
            paid: has.paid + end.taken.paid,
            trial: has.trial + end.taken.trial,
        };
        self.open.insert(request.to_owned(), hold);
    }

    /// Voids all open requests, because their process is gone. The next one enters all ends first.
    pub fn crash(&mut self) {
        self.waiting = 0;
        for (request, hold) in std::mem::take(&mut self.open) {
            let (taken, writeoff) = (Parts::default(), 0);
            let end = End {
                account: hold.account,
                is_debit: false,
                taken,
                writeoff,
                refunded: 0,
            };
            assert!(self.ends.insert(request, end).is_none());
        }
    }

    /// Removes what is left of trials that have ended and whose account has no open request.
    pub fn lapse(&mut self, now: i64) {
        for index in 0..self.accounts.len() {
            let is_quiet = !self.open.values().any(|hold| hold.account == index);
            let runs = self.runs(index, now);
            let account = &mut self.accounts[index];
            if !runs && account.has.trial > 0 && is_quiet {
                account.has.trial = 0;
                account.lapsed = true;
            }
        }
    }

    /// Refunds `amount` of a debit, or all that is left of it. `None` if the rules forbid it.
    pub fn refund(&mut self, request: &str, amount: Option<i128>, now: i64) -> Option<i128> {
        let end = self.ends.get(request).filter(|end| end.is_debit)?.clone();
        let left = end.taken.total() - end.refunded;
        let amount = amount.unwrap_or(left);
        if amount <= 0 || amount > left {
            return None;
        }
        let of_paid = (end.taken.paid - end.refunded).max(0).min(amount);
        let runs = self.runs(end.account, now);
        let has = &mut self.accounts[end.account].has;
        has.paid += if runs { of_paid } else { amount };
        has.trial += if runs { amount - of_paid } else { 0 };
        self.ends.get_mut(request)?.refunded += amount;
        Some(amount)
    }

    /// Grants or deducts credit by hand. Returns `false` if the rules forbid it.
    pub fn adjust(&mut self, account: usize, amount: i128, now: i64) -> bool {
        let free = self.free(account, now);
        let of = &mut self.accounts[account];
        if amount > 0 {
            of.has.paid += amount;
            of.was_given = true;
            return true;
        }
        let paid = (-amount).min(free.paid.max(0));
        let trial = -amount - paid;
        if trial > free.trial.max(0) {
            return false;
        }
        of.has = Parts {
            paid: of.has.paid - paid,
            trial: of.has.trial - trial,
        };
        true
    }
}
