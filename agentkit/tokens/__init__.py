"""What the policy saw, exactly: the ledger, tokenizers, chat templates and renderers. No I/O, no event loop."""

from agentkit.tokens.bytelevel import ByteTokenizer as ByteTokenizer
from agentkit.tokens.family import CHATML as CHATML
from agentkit.tokens.family import GLM as GLM
from agentkit.tokens.family import LLAMA3 as LLAMA3
from agentkit.tokens.family import QWEN as QWEN
from agentkit.tokens.family import Family as Family
from agentkit.tokens.hf import HFTemplate as HFTemplate
from agentkit.tokens.hf import HFTokenizer as HFTokenizer
from agentkit.tokens.ledger import Ledger as Ledger
from agentkit.tokens.ledger import Mark as Mark
from agentkit.tokens.ledger import TokenView as TokenView
from agentkit.tokens.ledger import join as join
from agentkit.tokens.renderer import TemplateRenderer as TemplateRenderer
from agentkit.tokens.renderer import byte_chatml as byte_chatml
from agentkit.tokens.safe import SafeEncoder as SafeEncoder
