"""The core of Hexad: methods, studies, engines, reports and the command line.

Importing it imports no numerical library. What a method's author uses most:

- `hexad.core.methods.Method`, announced by the entry-point group `hexad.methods`
- `hexad.core.studies`: `Study`, `Arm`, `Metric`, `Claim`, `Preset`, `Trial`, `Measurement`
- `hexad.core.errors`: `InputError` and its kin; `hexad.core.validation` raises them with one wording
- `hexad.core.files`, `.data`, `.timing`, `.plots`, `.training`
"""
