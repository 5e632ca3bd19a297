# The public names, each listed once: lazy_loader reads this file at run time, type checkers read it as it is.
from .engine.convert import Options as Options
from .engine.convert import convert as convert
from .images.policy import ImagePolicy as ImagePolicy
from .python_dataset import write as write
from .sources.imagefolder import ImageFolder as ImageFolder
