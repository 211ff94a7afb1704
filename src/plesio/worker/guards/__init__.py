"""Checks of what a training function does that would otherwise give wrong results silently.

| when            | what                                                             | then    | where         |
| --------------- | ---------------------------------------------------------------- | ------- | ------------- |
| prepare         | tensors overlap in memory                                        | refused | `overlap`     |
| prepare         | trainable parameters are in no group of the optimizer            | warned  | `guards`      |
| prepare         | a layer limits its own weights, and a version replaces them      | warned  | `guards`      |
| first step      | a Hugging Face Trainer reads its data by itself                  | refused | `guards`      |
| each step       | tensors were added, replaced or removed                          | refused | `inventory`   |
| each step       | weights were written by hand, and a version replaces them        | refused | `writes`      |
| each step       | an optimizer steps that was not prepared                         | refused | `exchanged`   |
| each step       | a frozen parameter was unfrozen                                  | refused | `guards`      |
| each step       | a tensor was given other memory, shape or dtype                  | refused | `inventory`   |
| each step       | a parameter was frozen, and the server goes on moving it         | warned  | `replica`     |
| each exchange   | replicas that all-reduce differ                                  | refused | `divergence`  |
| each reduction  | gradients were not reduced                                       | mended  | `all_reduce`  |
| end             | what was written into the model is in no result                  | warned  | `writes`      |
"""
