"""Translated conversations in the hands of the vendors' own code: Mistral's validator, and the chat templates by which
servers of one's own make a prompt of a conversation. It needs no gateway: it reads the requests of the vectors.
"""
import json
import pathlib

import jinja2
import pytest
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.validator import MistralRequestValidatorV5, MistralRequestValidatorV13

VECTORS = pathlib.Path(__file__).parent.parent.parent / "vectors"

# What the templates of these models raise, written down from their repositories (read 2026-11-28):
# Qwen/Qwen3.5: "System message must be at the beginning."; google/gemma-2 and before: no system role, and roles must
# alternate; meta-llama/Llama-3.1: a tool's message follows a call, with one call a message.
TEMPLATES = {
    "qwen3.5": """
        {%- for message in messages %}
          {%- if message.role == 'system' and not loop.first %}
            {{- raise_exception('System message must be at the beginning.') }}
          {%- elif message.role not in ['system', 'user', 'assistant', 'tool'] %}
            {{- raise_exception('Unexpected message role.') }}
          {%- endif %}
          {{- '<|im_start|>' + message.role + '\n' }}{{ message.content if message.content is string }}
          {%- for call in message.tool_calls or [] %}{{ call.function.name }}{{ call.function.arguments }}{% endfor %}
        {%- endfor %}
        {%- if not messages | selectattr('role', 'equalto', 'user') | list %}
          {{- raise_exception('No user query found in messages.') }}
        {%- endif %}""",
}
# Presets of servers that make a prompt by such a template.
TEMPLATED = {"vllm", "llama-cpp", "lm-studio", "ollama", "sglang", "tgi"}


def raise_exception(message):
    raise jinja2.TemplateError(message)


def requests():
    """The chat requests of the vectors whose case names a preset."""
    for case in sorted(VECTORS.glob("*-to-chat/*/case.json")):
        sent = case.with_name("vendor_request.json")
        preset = json.loads(case.read_text()).get("preset")
        if preset and sent.exists():
            yield pytest.param(preset, json.loads(sent.read_text()), id=f"{case.parent.parent.name}/{case.parent.name}")


def of(presets):
    found = [param for param in requests() if param.values[0] in presets]
    assert found, presets
    return found


@pytest.mark.parametrize("preset, body", of({"mistral"}))
def test_mistral_takes_the_order_ids_and_parts(preset, body):
    messages = [{"content": "", **message} for message in body["messages"]]
    # Documents are read by the service, before its validator.
    for message in messages:
        if isinstance(message["content"], list):
            message["content"] = [part for part in message["content"] if part["type"] != "document_url"]
    request = ChatCompletionRequest.from_openai(messages=messages, tools=body.get("tools"))
    # The conversion forgets the one member that OpenAI does not have.
    request.messages[-1] = request.messages[-1].model_copy(update={"prefix": messages[-1].get("prefix", False)})
    for validator in (MistralRequestValidatorV5(), MistralRequestValidatorV13()):
        validator.validate_messages(request.messages)


@pytest.mark.parametrize("preset, body", of(TEMPLATED))
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_translated_conversation_renders(preset, body, template):
    environment = jinja2.Environment()
    environment.globals["raise_exception"] = raise_exception
    assert environment.from_string(TEMPLATES[template]).render(messages=body["messages"]).strip()
