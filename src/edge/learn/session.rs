//! Sends the requests of one run, within limits on their number, time and cost.
//!
//! This file must not decide what an answer means, or send a request beyond the limits of the run.

use super::answer::{Answer, ToolTurn};
use super::table::{Probe, ProbeFinding, ProtocolProbes, probes_of};
use crate::edge::probe::{EndpointReport, VendorClient};
use bytes::Bytes;
use config::Limits;
use config::catalog::{CatalogModel, CatalogVendor, VendorEndpoint};
use credits::money::Micro;
use credits::pricing;
use http::header;
use llm_protocol::failure;
use llm_protocol::translate;
use llm_protocol::usage::Usage;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::Instant;

pub const MAX_REQUESTS: u32 = 40;
const MAX_DURATION: Duration = Duration::from_secs(600);
/// Output limit of a request, in tokens. Some reasoning models refuse a smaller one.
const OUTPUT_TOKENS: u64 = 64;
/// Tokens that the vendor's own template may add to a prompt.
const TEMPLATE_TOKENS: u64 = 256;
/// Size that the estimate assumes for a turn of the model in a later request, in bytes.
const TURN_BYTES: u64 = 2_048;
/// Longest wait that a vendor may ask for, in seconds.
const MAX_WAIT_SECONDS: u32 = 60;
/// Longest text that fills a context, in bytes.
const MAX_LONG_BYTES: u64 = 8_388_608;
/// A word that is one token for most models.
const LONG_WORD: &str = " a";

/// The cost of the requests of a run, and its limit.
#[derive(Debug)]
pub struct Budget {
    max_credits: Micro,
    deadline: Instant,
    pub spent: Micro,
    pub requests: u32,
    /// The vendor's refusal of the key, after which no later request can succeed.
    pub key_refusal: Option<String>,
}

impl Budget {
    /// Counts a request with this maximum cost. Returns the reason if the request must not be sent.
    fn take(&mut self, now: Instant, cost: Micro) -> Result<(), String> {
        if let Some(why) = &self.key_refusal {
            return Err(why.clone());
        }
        if self.requests >= MAX_REQUESTS {
            return Err(format!("{MAX_REQUESTS} requests are sent"));
        }
        if now >= self.deadline {
            return Err(format!("{} s are over", MAX_DURATION.as_secs()));
        }
        // Without an answer, the vendor may still have generated one and charged for it.
        let spent = self.spent.plus(cost);
        if spent > self.max_credits {
            return Err(format!("it could cost {cost} credits"));
        }
        self.requests += 1;
        self.spent = spent;
        Ok(())
    }
}

pub struct LearnSession<'a> {
    pub client: VendorClient<'a>,
    pub report: EndpointReport,
    address: SocketAddr,
    pub model: &'a CatalogModel,
    pub table: &'static ProtocolProbes,
    pub limit_member: &'static str,
    pub budget: Budget,
    /// Rate limits that the vendor reports in header fields.
    pub header_limits: BTreeMap<String, String>,
    pub findings: Vec<ProbeFinding>,
    /// Members of the request that turned reasoning on.
    pub reasoning_on: Map<String, Value>,
    /// The answer to the probes with tools.
    pub turn: Option<ToolTurn>,
}

impl<'a> LearnSession<'a> {
    /// Connects to the endpoint without sending a request.
    ///
    /// # Errors
    /// Returns the reason why the vendor cannot be tested.
    pub async fn connect(
        (vendor, endpoint): (&'a CatalogVendor, &'a VendorEndpoint),
        model: &'a CatalogModel,
        limits: &'a Limits,
        max_credits: Micro,
    ) -> Result<Self, String> {
        let table = probes_of(model.protocol())?;
        let client = VendorClient::new(vendor, endpoint, limits);
        let mut report = EndpointReport::new(vendor, endpoint);
        let Some(address) = client.find_reachable_address(&mut report).await else {
            return Err(report.faults.join("; "));
        };
        Ok(Self {
            client,
            report,
            address,
            model,
            table,
            limit_member: model.output_limit_field(),
            budget: Budget {
                max_credits,
                deadline: Instant::now() + MAX_DURATION,
                spent: Micro::ZERO,
                requests: 0,
                key_refusal: None,
            },
            header_limits: BTreeMap::new(),
            findings: Vec::new(),
            reasoning_on: Map::new(),
            turn: None,
        })
    }

    /// Returns a text that exceeds the model's context, or `None` if that is too long to send.
    pub fn long_text(&self) -> Option<String> {
        // Add an eighth, because the text may have fewer tokens than words.
        let context = self.model.context_tokens;
        let words = context.saturating_add(context / 8);
        let bytes = words.saturating_mul(LONG_WORD.len() as u64);
        let words = usize::try_from(words).ok()?;
        (bytes <= MAX_LONG_BYTES).then(|| LONG_WORD.repeat(words))
    }

    /// Returns the maximum cost of all small requests, and of the request that fills the context.
    pub fn max_costs(&self) -> [Micro; 2] {
        let max_cost = |body, probe: &Probe| {
            self.max_cost(&self.body(body, probe), probe.input_tokens + TURN_BYTES)
        };
        let mut members = self.table.members_with.clone();
        members.extend(self.table.members.clone());
        let other = Probe::default();
        let probes = self.table.probes.iter().map(|probe| (&probe.body, probe));
        let requests = probes.chain(std::iter::repeat((&members, &other)));
        let small = requests.take(MAX_REQUESTS as usize);
        let small = small.fold(Micro::ZERO, |sum, (body, probe)| {
            sum.plus(max_cost(body, probe))
        });
        let long = self.long_text().map_or(0, |text| text.len() as u64);
        [small, self.cost(long + TURN_BYTES, OUTPUT_TOKENS)]
    }

    /// Returns the plain request with these members added.
    pub fn body(&self, members: &Map<String, Value>, probe: &Probe) -> Value {
        let mut body = self.table.plain.body.clone();
        body.insert("model".to_owned(), self.model.upstream_model.clone().into());
        let limit = probe.output_tokens.unwrap_or(OUTPUT_TOKENS);
        let limit = limit.min(self.model.max_output_tokens);
        body.insert(self.limit_member.to_owned(), limit.into());
        body.extend(members.clone());
        body.into()
    }

    fn max_cost(&self, body: &Value, input_tokens: u64) -> Micro {
        let bytes = u64::try_from(body.to_string().len()).unwrap_or(u64::MAX);
        let output = body[self.limit_member].as_u64().unwrap_or_default();
        self.cost(bytes.saturating_add(input_tokens), output)
    }

    /// Returns the cost of the tokens. Input is priced at the input price or the cache write price,
    /// whichever is higher, because a vendor may write to its cache unasked.
    fn cost(&self, input: u64, output: u64) -> Micro {
        let input = input.saturating_add(TEMPLATE_TOKENS);
        let cost = |usage: Usage| pricing::cost(&Usage { output, ..usage }, &self.model.price);
        let (mut plain, mut cached) = (Usage::default(), Usage::default());
        (plain.input, cached.cache_write_5m) = (input, input);
        cost(plain).max(cost(cached))
    }

    /// Sends a request if the limits of the run allow it. Waits once if the vendor asks for that.
    ///
    /// # Errors
    /// Returns why there is no answer.
    pub async fn send(&mut self, body: &Value, input_tokens: u64) -> Result<Answer, String> {
        let cost = self.max_cost(body, input_tokens);
        let protocol = self.model.protocol();
        let mut has_waited = false;
        loop {
            self.budget.take(Instant::now(), cost)?;
            let sent = Bytes::from(body.to_string());
            let path = translate::vendor_path(protocol);
            let response = self.client.generate(self.address, path, sent).await?;
            for (name, value) in &response.headers {
                let words = name.as_str().replace('-', "");
                if let (true, Ok(value)) = (words.contains("ratelimitlimit"), value.to_str()) {
                    let limits = &mut self.header_limits;
                    limits.insert(name.to_string(), value.to_owned());
                }
            }
            let answer = Answer::new(protocol, response, &self.table.places);
            let response = &answer.response;
            let status = response.status;
            let billed = match &answer.usage {
                _ if !response.is_good() => Micro::ZERO,
                Some(usage) => pricing::cost(usage, &self.model.price),
                None => cost,
            };
            self.budget.spent = self.budget.spent.minus(cost).plus(billed);
            if matches!(status, 401 | 402) || failure::refuses_key(status, &response.body) {
                let words = self.client.message(response);
                let why = format!("the vendor refused the key ({status}): {words}");
                return Err(self.budget.key_refusal.insert(why).clone());
            }
            if status != 429 {
                return Ok(answer);
            }
            let wait = response.headers.get(header::RETRY_AFTER);
            let wait = wait.and_then(|wait| failure::retry_after_seconds(wait.to_str().ok()?));
            let Some(seconds) = wait.filter(|wait| *wait <= MAX_WAIT_SECONDS && !has_waited) else {
                let words = self.client.message(response);
                return Err(format!("rate limit (429): {words}"));
            };
            has_waited = true;
            tokio::time::sleep(Duration::from_secs(seconds.into())).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_at_its_requests_its_time_and_its_credits() {
        let now = Instant::now();
        let budget = |requests, seconds| Budget {
            max_credits: Micro::new(2_000_000),
            deadline: now + Duration::from_secs(seconds),
            spent: Micro::ZERO,
            requests,
            key_refusal: None,
        };
        let one = Micro::new(1_000_000);
        let mut last = budget(MAX_REQUESTS - 1, 1);
        assert_eq!(last.take(now, one), Ok(()));
        assert_eq!(last.take(now, one), Err("40 requests are sent".to_owned()));
        let late = budget(0, 0).take(now, one);
        assert_eq!(late, Err("600 s are over".to_owned()));
        let mut dear = budget(0, 1);
        assert_eq!((dear.take(now, one), dear.take(now, one)), (Ok(()), Ok(())));
        let words = "it could cost 1 credits".to_owned();
        assert_eq!(dear.take(now, one), Err(words));
        assert_eq!((dear.requests, dear.spent), (2, Micro::new(2_000_000)));
    }
}
