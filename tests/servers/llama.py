"""llama.cpp's own server from the package xllamacpp, with a model that this program makes: one layer of random weights, and a
token for each byte. `python llama.py PORT`"""

import signal
import sys

import numpy
import xllamacpp
from gguf import GGUFWriter, TokenType

FILE = "llama.gguf"
WIDTH, CONTEXT, VOCABULARY = 32, 512, 3 + 256
SQUARE, UP, WORDS = (WIDTH, WIDTH), (2 * WIDTH, WIDTH), (VOCABULARY, WIDTH)
SHAPES = {
    "token_embd": WORDS, "blk.0.attn_q": SQUARE, "blk.0.attn_k": SQUARE, "blk.0.attn_v": SQUARE, "blk.0.attn_output": SQUARE,
    "blk.0.ffn_gate": UP, "blk.0.ffn_up": UP, "blk.0.ffn_down": UP[::-1], "output": WORDS,
}

writer = GGUFWriter(FILE, "llama")
writer.add_context_length(CONTEXT)
writer.add_embedding_length(WIDTH)
writer.add_block_count(1)
writer.add_feed_forward_length(2 * WIDTH)
writer.add_head_count(2)
writer.add_layer_norm_rms_eps(1e-5)
writer.add_tokenizer_model("llama")
writer.add_token_list(["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))])
writer.add_token_scores([0.0] * VOCABULARY)
writer.add_token_types([TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256])
writer.add_bos_token_id(1)
writer.add_eos_token_id(2)
random = numpy.random.default_rng(1)
for name, shape in SHAPES.items():
    writer.add_tensor(f"{name}.weight", random.normal(0, 0.3, shape).astype(numpy.float32))
for name in ["blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"]:
    writer.add_tensor(f"{name}.weight", numpy.ones(WIDTH, numpy.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()

params = xllamacpp.CommonParams()
params.model.path = FILE
params.port = int(sys.argv[1])
params.n_ctx = CONTEXT
params.n_parallel = 1
params.cpuparams.n_threads = 1
params.warmup = False
server = xllamacpp.Server(params)
signal.pause()
