"""CPU of appending to a conversation, beside the least it can cost, a full re-render and verl's builder.

What is measured, and the command for it, is in `_conversation.py`. Python looks for modules in the folder of a script
first, so it is also here that the scripts of this folder find `tokenize` of the standard library: unless this file is
the script itself, it steps aside for it.
"""

import sys
import sysconfig
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

if __name__ == "__main__":
    from _conversation import main

    main()
else:
    spec = PathFinder.find_spec(__name__, [sysconfig.get_path("stdlib")])
    assert spec is not None
    assert spec.loader is not None
    sys.modules[__name__] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[__name__])
