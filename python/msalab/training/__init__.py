# SPDX-License-Identifier: MIT
"""`msalab train`: continued training of a transformers model with MSA in place of its attention. The
package needs PyTorch 2.6 or later, transformers and the compiled module."""
