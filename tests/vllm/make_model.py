"""Make the tiny Llama with random weights that the vLLM tests serve: no download, no hub, the same bytes every time.

Runs with the Python of the vLLM environment. A random model never means to stop, so tests bound `max_tokens`.
"""

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 4096
CONTEXT_TOKENS = 8192
TRAINING_TEXT_BYTES = 2_000_000
BEGIN, END, PAD, TURN, TEXT = "<|begin|>", "<|end|>", "<|pad|>", "<|turn|>", "<|text|>"

# Every message opens and closes with the same tokens wherever it stands: a conversation's next turn then starts with
# all tokens of the turn before, which is what prefix caching lives on. Tools come first, as in the usual templates.
CHAT_TEMPLATE = f"""\
{{{{- '{BEGIN}' -}}}}
{{%- if tools -%}}{{{{- '{TURN}tools{TEXT}' + (tools | tojson) + '{END}' -}}}}{{%- endif -%}}
{{%- for message in messages -%}}
  {{{{- '{TURN}' + message['role'] + '{TEXT}' -}}}}
  {{%- if message['content'] is string -%}}{{{{- message['content'] -}}}}
  {{%- else -%}}
    {{%- for part in message['content'] or [] if part['type'] == 'text' -%}}{{{{- part['text'] -}}}}{{%- endfor -%}}
  {{%- endif -%}}
  {{{{- '{END}' -}}}}
{{%- endfor -%}}
{{%- if add_generation_prompt -%}}{{{{- '{TURN}assistant{TEXT}' -}}}}{{%- endif -%}}
"""


def standard_library_text(limit_bytes: int) -> Iterator[str]:
    """Yield Python's own sources in a fixed order until `limit_bytes` are given: text that every machine has."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        yield text
        limit_bytes -= len(text)
        if limit_bytes <= 0:
            return


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Train a byte-level tokenizer; any text can be encoded with it, and comes back the same."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, BEGIN, END, TURN, TEXT],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(standard_library_text(TRAINING_TEXT_BYTES), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PAD,
        model_max_length=CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A Llama of 0.9 million parameters: about 1,000 tokens/s on one core."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT_TOKENS,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
        initializer_range=0.05,  # the default of 0.02 makes greedy answers one repeated token
        dtype="bfloat16",
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


def main() -> None:
    folder = Path(sys.argv[1])
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    make_model(tokenizer).save_pretrained(folder)


if __name__ == "__main__":
    main()
