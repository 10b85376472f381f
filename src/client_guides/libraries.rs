//! Guides for libraries: one short program each, which reads the key from the environment.
//!
//! A program uses the surface of the model's vendor if its library has it.

use super::applications::hello_tokens;
use super::format::quoted;
use super::{ClientGuide, ClientKind, ClientSetup, FileFormat, SetupContext, best_surface};
use llm_protocol::Protocol;

const CHAT_AND_MESSAGES: &[Protocol] = &[Protocol::Chat, Protocol::Messages];

pub const GUIDES: &[ClientGuide] = &[
    ClientGuide {
        id: "anthropic-python",
        name: "Python, anthropic",
        kind: ClientKind::Library,
        surfaces: &[Protocol::Messages],
        build: anthropic_python,
    },
    ClientGuide {
        id: "openai-python",
        name: "Python, openai",
        kind: ClientKind::Library,
        surfaces: &[Protocol::Chat, Protocol::Responses],
        build: openai_python,
    },
    ClientGuide {
        id: "langchain",
        name: "LangChain",
        kind: ClientKind::Library,
        surfaces: CHAT_AND_MESSAGES,
        build: langchain,
    },
    ClientGuide {
        id: "pydantic-ai",
        name: "Pydantic AI",
        kind: ClientKind::Library,
        surfaces: CHAT_AND_MESSAGES,
        build: pydantic_ai,
    },
    ClientGuide {
        id: "openai-agents",
        name: "OpenAI Agents SDK",
        kind: ClientKind::Library,
        surfaces: &[Protocol::Chat],
        build: openai_agents,
    },
    ClientGuide {
        id: "anthropic-node",
        name: "Node.js, @anthropic-ai/sdk",
        kind: ClientKind::Library,
        surfaces: &[Protocol::Messages],
        build: anthropic_node,
    },
    ClientGuide {
        id: "openai-node",
        name: "Node.js, openai",
        kind: ClientKind::Library,
        surfaces: &[Protocol::Chat, Protocol::Responses],
        build: openai_node,
    },
    ClientGuide {
        id: "ai-sdk",
        name: "AI SDK",
        kind: ClientKind::Library,
        surfaces: &[Protocol::Responses],
        build: ai_sdk,
    },
];

/// Values in the text of a program, quoted.
struct ProgramValues {
    base_url: String,
    v1: String,
    model: String,
    tokens: u64,
    /// Expressions that read the key.
    python_key: String,
    node_key: String,
}

impl ProgramValues {
    fn new(context: &SetupContext<'_>) -> Self {
        let variable = quoted(&context.key.variable);
        Self {
            base_url: quoted(context.base_url),
            v1: quoted(&context.v1()),
            model: quoted(&context.model().id),
            tokens: hello_tokens(context),
            python_key: format!("os.environ[{variable}]"),
            node_key: format!("process.env[{variable}]"),
        }
    }
}

fn python(package: &str, path: &'static str, text: String) -> ClientSetup {
    ClientSetup::default()
        .with_file(path, FileFormat::Python, text)
        .with_command(format!("pip install {package}"))
        .with_run(format!("python {path}"))
}

fn node(packages: &str, path: &'static str, text: String) -> ClientSetup {
    ClientSetup::default()
        .with_file(path, FileFormat::JavaScript, text)
        .with_command(format!("npm install {packages}"))
        .with_run(format!("node {path}"))
}

fn anthropic_python(context: &SetupContext<'_>) -> ClientSetup {
    let ProgramValues {
        base_url,
        model,
        tokens,
        python_key,
        ..
    } = ProgramValues::new(context);
    let text = format!(
        r#"import os
from anthropic import Anthropic

client = Anthropic(base_url={base_url}, api_key={python_key})
message = client.messages.create(
    model={model},
    max_tokens={tokens},
    messages=[{{"role": "user", "content": "Say hello."}}],
)
print("".join(block.text for block in message.content if block.type == "text"))"#
    );
    python("anthropic", "hello_anthropic.py", text)
}

fn openai_python(context: &SetupContext<'_>) -> ClientSetup {
    let ProgramValues {
        v1,
        model,
        tokens,
        python_key,
        ..
    } = ProgramValues::new(context);
    let chat = format!(
        r#"import os
from openai import OpenAI

client = OpenAI(base_url={v1}, api_key={python_key})
completion = client.chat.completions.create(
    model={model},
    max_tokens={tokens},
    messages=[{{"role": "user", "content": "Say hello."}}],
)
print(completion.choices[0].message.content)"#
    );
    let responses = format!(
        r#"import os
from openai import OpenAI

client = OpenAI(base_url={v1}, api_key={python_key})
response = client.responses.create(model={model}, store=False, input="Say hello.")
print(response.output_text)"#
    );
    python("openai", "hello_openai.py", chat)
        .with_file("hello_responses.py", FileFormat::Python, responses)
        .with_note(
            "With the responses API, set store to False and send the whole conversation: the \
             gateway stores none.",
        )
}

fn langchain(context: &SetupContext<'_>) -> ClientSetup {
    let ProgramValues {
        base_url,
        v1,
        model,
        tokens,
        python_key,
        ..
    } = ProgramValues::new(context);
    if best_surface(context.model(), CHAT_AND_MESSAGES) == Protocol::Messages {
        let text = format!(
            r#"import os
from langchain_anthropic import ChatAnthropic

chat = ChatAnthropic(
    model={model},
    base_url={base_url},
    api_key={python_key},
    max_tokens={tokens},
)
print(chat.invoke("Say hello.").text)"#
        );
        return python("langchain-anthropic", "hello_langchain.py", text);
    }
    let text = format!(
        r#"import os
from langchain_openai import ChatOpenAI

chat = ChatOpenAI(
    model={model},
    base_url={v1},
    api_key={python_key},
    max_tokens={tokens},
    stream_usage=True,
)
print(chat.invoke("Say hello.").text)"#
    );
    python("langchain-openai", "hello_langchain.py", text).with_note(
        "Without stream_usage, LangChain requests no token counts in streams from this address.",
    )
}

fn pydantic_ai(context: &SetupContext<'_>) -> ClientSetup {
    let ProgramValues {
        base_url,
        v1,
        model,
        tokens,
        python_key,
        ..
    } = ProgramValues::new(context);
    let (package, module, class, provider, address) =
        if best_surface(context.model(), CHAT_AND_MESSAGES) == Protocol::Messages {
            let package = "'pydantic-ai-slim[anthropic]'";
            (
                package,
                "anthropic",
                "AnthropicModel",
                "AnthropicProvider",
                base_url,
            )
        } else {
            let package = "'pydantic-ai-slim[openai]'";
            (package, "openai", "OpenAIChatModel", "OpenAIProvider", v1)
        };
    let text = format!(
        r#"import os
from pydantic_ai import Agent
from pydantic_ai.models.{module} import {class}
from pydantic_ai.providers.{module} import {provider}

provider = {provider}(base_url={address}, api_key={python_key})
agent = Agent({class}({model}, provider=provider), model_settings={{"max_tokens": {tokens}}})
print(agent.run_sync("Say hello.").output)"#
    );
    python(package, "hello_pydantic_ai.py", text)
}

fn openai_agents(context: &SetupContext<'_>) -> ClientSetup {
    let ProgramValues {
        v1,
        model,
        tokens,
        python_key,
        ..
    } = ProgramValues::new(context);
    let text = format!(
        r#"import os
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner
from agents import set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)
client = AsyncOpenAI(base_url={v1}, api_key={python_key})
agent = Agent(
    name="Greeter",
    instructions="Reply in one sentence.",
    model=OpenAIChatCompletionsModel(model={model}, openai_client=client),
    model_settings=ModelSettings(max_tokens={tokens}, include_usage=True),
)
print(Runner.run_sync(agent, "Say hello.").final_output)"#
    );
    python("openai-agents", "hello_agents.py", text)
        .with_note("Tracing is off because the SDK would send it to OpenAI.")
}

fn anthropic_node(context: &SetupContext<'_>) -> ClientSetup {
    let ProgramValues {
        base_url,
        model,
        tokens,
        node_key,
        ..
    } = ProgramValues::new(context);
    let text = format!(
        r#"import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({{ baseURL: {base_url}, apiKey: {node_key} }});
const message = await client.messages.create({{
  model: {model},
  max_tokens: {tokens},
  messages: [{{ role: "user", content: "Say hello." }}],
}});
console.log(message.content.map((block) => block.text ?? "").join(""));"#
    );
    node("@anthropic-ai/sdk", "hello-anthropic.mjs", text)
}

fn openai_node(context: &SetupContext<'_>) -> ClientSetup {
    let ProgramValues {
        v1,
        model,
        tokens,
        node_key,
        ..
    } = ProgramValues::new(context);
    let text = format!(
        r#"import OpenAI from "openai";

const client = new OpenAI({{ baseURL: {v1}, apiKey: {node_key} }});
const completion = await client.chat.completions.create({{
  model: {model},
  max_tokens: {tokens},
  messages: [{{ role: "user", content: "Say hello." }}],
}});
console.log(completion.choices[0].message.content);"#
    );
    node("openai", "hello-openai.mjs", text)
}

fn ai_sdk(context: &SetupContext<'_>) -> ClientSetup {
    let ProgramValues {
        v1,
        model,
        tokens,
        node_key,
        ..
    } = ProgramValues::new(context);
    let text = format!(
        r#"import {{ createOpenAI }} from "@ai-sdk/openai";
import {{ generateText }} from "ai";

const gateway = createOpenAI({{ baseURL: {v1}, apiKey: {node_key} }});
const {{ text }} = await generateText({{
  model: gateway({model}),
  maxOutputTokens: {tokens},
  prompt: "Say hello.",
  providerOptions: {{ openai: {{ store: false }} }},
}});
console.log(text);"#
    );
    node("ai @ai-sdk/openai", "hello-ai-sdk.mjs", text).with_note(
        "Without store: false, the SDK refers to earlier items by id. The gateway refuses that, \
         because it stores no conversation.",
    )
}
